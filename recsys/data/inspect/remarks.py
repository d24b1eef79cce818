"""Remarkable facts about interactions: sentences that `recsys check` adds to its counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from recsys.data.config import GateConfig, InteractionsConfig
from recsys.data.inspect.findings import ENOUGH_IDS, Findings
from recsys.data.inspect.names import shown
from recsys.data.inspect.profile import Profile
from recsys.data.inspect.roles import Roles, has_few_numbers
from recsys.data.inspect.sides import Side
from recsys.data.interactions import remark_on_positives
from recsys.formats import counted

_MANY_REPEATS = 0.01
_FEWEST = 2
_NEARLY_ALL = 0.9


def remarks_on(
    config: InteractionsConfig,
    profiles: Mapping[str, Profile],
    roles: Roles,
    findings: Findings,
    sides: Mapping[str, Side],
    part: str | None,
) -> list[str]:
    """Returns remarkable facts, a sentence each.

    Args:
        config: Config of the interactions.
        profiles: Profiles of their columns.
        roles: The column of each role.
        findings: Predicted result of a run, with some positives.
        sides: The items and the users.
        part: The column of the parts, if there is one.
    """
    return [
        *_on_rows("interactions", findings),
        *(remark for what, side in sides.items() for remark in _on_side(what, side, findings)),
        *_too_few(findings),
        *filter(None, [remark_on_positives(config, findings.n_positive, findings.n_good)]),
        *_histories(config, findings),
        *_repeats(findings),
        *_without_role(profiles, {*(role.column for role in roles.decided.values()), part}),
    ]


def _on_rows(what: str, findings: Findings) -> Iterator[str]:
    if findings.n_rejected > GateConfig().max_rejected_share * findings.n_read:
        yield (
            f"{findings.n_rejected:,} of {findings.n_read:,} rows of {what} are rejected, which"
            " exceeds data.gate.max_rejected_share: a run would stop. Repair the data, or raise"
            " the threshold."
        )


def _on_side(what: str, side: Side, interactions: Findings) -> Iterator[str]:
    if side.findings is None:
        return
    yield from _on_rows(what, side.findings)
    share = interactions.n_known.get(what, 0) / max(1, interactions.keys.n_added)
    if share < _NEARLY_ALL:
        yield f"The file of {what} has {share:.2%} of the interactions' {what}."
    if side.findings.n_conflicts:
        times = [p.name for p in side.profiles.values() if p.kind == "time" or p.unit is not None]
        such = f", such as {shown(times[0])}" if times else ""
        yield (
            f"{side.findings.n_conflicts:,} rows of {what} have other values than an earlier row"
            f" with their id, of which the first is used. Set data.{what}.latest to the column"
            f" that says which is newest{such}."
        )


def _too_few(findings: Findings) -> Iterator[str]:
    ids = {"user": findings.users, "item": findings.items}
    few = [
        counted(len(known), what, f"{what}s")
        for what, known in ids.items()
        if len(known) < ENOUGH_IDS
    ]
    if min(map(len, ids.values())) < _FEWEST:
        yield (
            f"All positives are of {' and '.join(few)}: a run would stop (R324). Training needs"
            " two users and two items at least."
        )
    elif few:
        yield (
            f"All positives are of {' and '.join(few)}: a run would train, but may stop in the"
            " evaluation (R408), which needs items that a user has not had, and ten users for a"
            " verdict."
        )


def _histories(config: InteractionsConfig, findings: Findings) -> Iterator[str]:
    n_left_out = findings.n_good - findings.n_positive
    if n_left_out:
        yield (
            f"{n_left_out:,} good rows are no positives. They also vanish from histories: of what"
            " a user did, a model reads only the positives."
        )
    elif config.columns.event is not None and not config.positive_events:
        yield (
            "All kinds of event are positives. If positive_events names some of them, the others"
            " also vanish from histories: a model reads only the positives of a user."
        )


def _repeats(findings: Findings) -> Iterator[str]:
    n_repeats = findings.n_positive - len(findings.pairs)
    if findings.first is not None and n_repeats > _MANY_REPEATS * findings.n_positive:
        yield (
            f"{n_repeats:,} positives are of an item that the user had before. Lists leave such"
            " items out, unless the config has repeats: include (docs/evaluation.md, Repeats)."
        )


def _without_role(profiles: Mapping[str, Profile], used: set[str | None]) -> Iterator[str]:
    few = [
        profile
        for profile in profiles.values()
        if profile.name not in used
        and profile.kind != "list"
        and (len(profile.distinct) == 2 or has_few_numbers(profile))
    ]
    if few:
        named = "; ".join(
            f"{shown(profile.name)} ({', '.join(shown(value, 16) for value in profile.examples)})"
            for profile in few[:10]
        )
        more = f"; {len(few) - 10} more" if len(few) > 10 else ""
        yield (
            f"Columns of few values that have no role, so that a run ignores them: {named}{more}."
            " If one says what a positive is, give it a role with --map."
        )
