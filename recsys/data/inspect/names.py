"""Roles suggested by column names; makes untrusted text safe for a terminal."""

from __future__ import annotations

import re

from recsys.errors import shortened, visible

_WORDS = {
    "user": "session sessionid sid user users uid userid customer customers client visitor "
    "account member reviewer buyer shopper subscriber viewer listener reader person "
    "customerid visitorid clientid",
    "item": "item items iid itemid aid product products movie movies film song track article asin "
    "sku isbn book video listing content offer game app artist business recipe productid movieid "
    "movieid articleid anime show post hotel restaurant place venue",
    "timestamp": "timestamp time ts dt ds date datetime day created at when unixtime unix moment",
    "rating": "rating ratings score stars star overall grade",
    "label": "label labels target click clicked like liked purchase purchased bought "
    "buy converted conversion favorite favorited favourite favourited positive relevance relevant",
    "weight": "weight quantity qty plays playcount listens listencount count counts",
    "duration": "hours minutes playtime playtimes playduration watchtime watchduration listentime "
    "viewtime dwell dwelltime readtime timespent",
    "event": "event action behavior behaviour type interaction",
    "id": "id key code no number",
    "title": "title name label",
}
_ROLES = {role: frozenset(words.split()) for role, words in _WORDS.items()}
RECBOLE_TYPE = re.compile(r":(token|token_seq|float|float_seq)$")
"""The suffixes of column names in RecBole's atomic files."""
_SESSION = {"session", "sessionid", "sid"}
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_A-Za-z]+")


def words_of(name: str) -> list[str]:
    """Returns the words of a name: `event.userId` → event, user, id."""
    return [word.lower() for word in _PARTS.findall(RECBOLE_TYPE.sub("", name))]


def role_words(name: str) -> set[str]:
    """Returns the roles that words of a name suggest."""
    words = set(words_of(name))
    joined = "".join(words_of(name))
    return {role for role, known in _ROLES.items() if words & known or joined in known}


def name_score(name: str, role: str) -> int:
    """Returns how strongly a name suggests a role, from 0 (not at all) to 4."""
    words, known = words_of(name), _ROLES[role]
    if not words:
        return 0
    if role == "user" and _SESSION & {words[0], "".join(words)}:
        return 3  # If there is also a user column, a session is not the user.
    if "".join(words) in known or (len(words) == 1 and words[0] in known):
        return 4
    is_id = words[-1] in _ROLES["id"]
    if len(words) > 1 and is_id and words[-2] in known:
        return 4
    if words[-1] in known:
        return 3 if role not in ("user", "item") else 2
    return 1 if set(words) & known else 0


def shown(text: str, limit: int = 40) -> str:
    """Returns text with control characters escaped, shortened to `limit` characters."""
    return shortened(visible(text[: limit + 1]), limit)
