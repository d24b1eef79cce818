"""Names of columns: which role a name suggests."""

from __future__ import annotations

import re

_WORDS = {
    "user": "session sessionid sid user users uid userid customer customers client visitor "
    "account member reviewer buyer shopper subscriber viewer listener reader person "
    "customerid visitorid clientid",
    "item": "item items iid itemid aid product products movie movies film song track article asin "
    "sku isbn book video listing content offer game app artist business recipe productid movieid "
    "ad creative poi articleid anime show post hotel restaurant place venue",
    "timestamp": "timestamp time ts dt ds date datetime day created at when unixtime unix moment",
    "rating": "rating ratings score stars star overall grade",
    "label": "label labels target click clicked like liked purchase purchased bought "
    "buy converted conversion favorite favorited favourite favourited positive relevance relevant "
    "follow followed share shared forward forwarded comment commented",
    "weight": "weight quantity qty plays playcount listens listencount count counts",
    "duration": "hours minutes playtime playtimes playduration watchtime watchduration listentime "
    "viewtime dwell dwelltime readtime timespent",
    "event": "event action behavior behaviour type interaction",
    "part": "part split set subset fold partition",
    "impression": "impression impressionid impr request requestid slate slateid searchid",
    "position": "position pos rank slot",
    "context": "device devicetype platform os browser page referrer referer source medium channel "
    "country city region state language locale network carrier tab scene scenario surface "
    "placement campaign season weekday daypart weather layout",
    "outcome": "ratio watchratio completion completed feedback revenue amount price paid discount "
    "skipped",
    "amount": "revenue amount price paid",
    "id": "id key code no number",
    "title": "title name label",
}
_KNOWN = {role: frozenset(words.split()) for role, words in _WORDS.items()}
RECBOLE_TYPE = re.compile(r":(token|token_seq|float|float_seq)$")
"""The suffixes of column names in RecBole's atomic files."""
_SESSION = {"session", "sessionid", "sid"}
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_A-Za-z]+")


def words_of(name: str) -> list[str]:
    """Returns the words of a name: `event.userId` → event, user, id."""
    return [word.lower() for word in _WORD.findall(RECBOLE_TYPE.sub("", name))]


def name_score(name: str, role: str) -> int:
    """Returns how strongly a name suggests a role, from 0 (not at all) to 4."""
    words, known = words_of(name), _KNOWN[role]
    if not words:
        return 0
    if role == "user" and _SESSION & {words[0], "".join(words)}:
        return 3  # If there is also a user column, a session is not the user.
    if "".join(words) in known or (
        words[-1] in _KNOWN["id"] and words[-2:-1] and words[-2] in known
    ):
        return 4
    if words[-1] in known:
        return 3 if role not in ("user", "item") else 2
    return 1 if known.intersection(words) else 0


def is_name(text: str) -> bool:
    """Returns whether a text is a column name, and not a value such as `user6`."""
    return any(name_score(text, role) >= 2 for role in _WORDS)


_FUNNEL = (
    "view views impression impressions show shows shown expose exposure pv",
    "click clicks open opens detail play plays watch read visit",
    "like likes fav favorite favorites favourite bookmark save saved wishlist collect",
    "cart carts basket add addtocart",
    "order orders checkout",
    "purchase purchases buy buys bought transaction transactions pay paid",
)
_STEP = {word: step for step, words in enumerate(_FUNNEL) for word in words.split()}
_UNDONE = {"remove", "removed", "cancel", "cancelled", "return", "refund", "unlike", "dislike"}


def funnel_step(kind: str) -> int:
    """Returns the step of a kind of event, such as `click`, in a funnel; -1 if it is none."""
    words = words_of(kind)
    step = max((_STEP.get(word, -1) for word in words), default=-1)
    return -1 if _UNDONE.intersection(words) else step
