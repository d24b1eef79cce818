"""The labels of events: columns of yes and no, kinds of events along a funnel, amounts."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Collection, Iterable, Mapping

import numpy as np
import pyarrow.compute as pc

from recsys.data.inspect.names import funnel_step, name_score
from recsys.data.inspect.profile import Profile
from recsys.data.inspect.roles import POSITIVE, Mapped, Roles, threshold, yes_of
from recsys.data.label_config import LabelConfig
from recsys.data.sources.values import to_numbers
from recsys.errors import UsageError, shown


@dataclasses.dataclass(frozen=True)
class Labels:
    """Proposed labels.

    Attributes:
        labels: The labels by name; none: all events are positives, or those of a rating.
        positive: The label of positives; None: there are no labels, or it is undecided.
        kinds: Kinds of event that the labels are made of.
        reason: Why these are the labels.
        undecided: Why the label of positives is undecided; empty: it is decided.
    """

    labels: dict[str, LabelConfig] = dataclasses.field(default_factory=dict)
    positive: str | None = None
    kinds: tuple[str, ...] = ()
    reason: str = ""
    undecided: str = ""

    @property
    def options(self) -> list[str]:
        """`--map` options that decide the label of positives."""
        return [f"{POSITIVE}={name}" for name, one in self.labels.items() if not one.is_amount]


def find_labels(roles: Roles, profiles: Mapping[str, Profile], mapped: Mapped) -> Labels:
    """Returns the labels of columns, or of the kinds of events.

    Args:
        roles: The decided roles.
        profiles: Profiles of the columns.
        mapped: Columns given by `--map`, by role; the label of positives, too.

    Raises:
        UsageError: `--map` names an unknown label.
    """
    columns = [profiles[role.column] for role in roles.several.get("label", ())]
    found = _of_columns(columns, is_for_ranking="impression" in roles.decided)
    if not columns and "rating" not in roles.decided and "event" in roles.decided:
        found = _of_kinds(profiles[roles.decided["event"].column])
    said = mapped.get(POSITIVE, (None,))[0]
    known = {label.column: name for name, label in found.labels.items()} if columns else {}
    said = known.get(said, said) if said else None
    if said is not None and said not in found.labels:
        rule = f"--map {POSITIVE} must name a label."
        named = ", ".join(found.labels) or "there are none; name one by --map label=COLUMN"
        raise UsageError("R258", rule, f"Labels: {named}.", said)
    if said is not None:
        found = dataclasses.replace(found, positive=said, undecided="")
    if not found.labels:
        return found
    amounts = [
        profiles[role.column]
        for role in roles.several.get("outcome", ())
        if name_score(role.column, "duration") and profiles[role.column].is_number
    ]
    more = {plain_name(p.name, found.labels): LabelConfig(column=p.name) for p in amounts}
    return dataclasses.replace(found, labels=found.labels | more)


def _of_columns(columns: list[Profile], is_for_ranking: bool) -> Labels:
    """Returns the labels of columns of yes and no, the most frequent first.

    A ranking model learns all of them, so that the positives are those of the first.
    """
    is_yes = {p.name: _is_yes(p) for p in columns}
    columns = sorted(columns, key=lambda p: -is_yes[p.name].sum())
    labels: dict[str, LabelConfig] = {}
    names: dict[str, str] = {}
    for at, profile in enumerate(columns):
        own, yes = is_yes[profile.name], yes_of(profile)
        before = [other for other in columns[:at] if is_yes[other.name].sum() > own.sum()]
        wider = [p for p in before if own.any() and not (own & ~is_yes[p.name]).any()]
        name = names[profile.name] = plain_name(profile.name, labels)
        labels[name] = LabelConfig(
            column=profile.name,
            at_least=threshold(profile) if yes is None else None,
            values=() if yes is None else (yes,),
            given=names[wider[-1].name] if wider else None,
        )
    if len(columns) < 2:
        return Labels(labels, next(iter(labels), None), reason="its name or values say label")
    if is_for_ranking:
        return Labels(labels, next(iter(labels)), reason="columns of yes and no")
    named = " and ".join(shown(profile.name) for profile in columns[:4])
    why = f"{POSITIVE}: {named} are equally likely to say which rows are positives"
    return Labels(labels, reason="columns of yes and no", undecided=why)


def _is_yes(profile: Profile) -> np.ndarray:
    """Returns which rows `[n_rows]` have the label."""
    yes, least = yes_of(profile), threshold(profile)
    if yes is not None:
        flags = pc.equal(profile.texts, yes)
    else:
        flags = pc.greater_equal(to_numbers(profile.texts), np.inf if least is None else least)
    return np.asarray(pc.fill_null(flags, False).to_numpy(zero_copy_only=False), bool)


def _of_kinds(profile: Profile) -> Labels:
    """Returns a label for each step of a funnel, such as click and buy, that kinds of event are."""
    steps: dict[int, list[str]] = {}
    for kind in profile.values:
        steps.setdefault(funnel_step(kind), []).append(kind)
    others = steps.pop(-1, [])
    if len(steps) < 2:
        return Labels()
    labels: dict[str, LabelConfig] = {}
    ordered = [steps[step] for step in sorted(steps)]
    for at, kinds in enumerate(ordered):
        values = tuple(itertools.chain(*ordered[at:]))
        labels[plain_name(kinds[0], labels)] = LabelConfig(column=profile.name, values=values)
    why = f"kinds of event along a funnel, {_counted(profile, itertools.chain(*ordered))}"
    why += f"; none of them: {_counted(profile, others)}" * bool(others)
    return Labels(labels, next(iter(labels)), tuple(itertools.chain(*ordered)), why)


def _counted(profile: Profile, kinds: Iterable[str]) -> str:
    return ", ".join(f"{shown(kind)} ({profile.values[kind]:,})" for kind in kinds)


def plain_name(column: str, taken: Collection[str]) -> str:
    """Returns a free name for a feature or a label."""
    name = re.sub(r"[^a-z0-9_]+", "_", column.lower()).strip("_")[:50]
    name = name if re.match(r"[a-z]", name) else f"feature_{name}".rstrip("_")
    numbered = (name, *(f"{name}_{number}" for number in range(2, len(taken) + 3)))
    return next(name for name in numbered if name not in taken)
