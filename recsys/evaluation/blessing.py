"""Decides whether a model may be pushed: compares intervals with the config's thresholds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping

from recsys.evaluation.config import BlessConfig, BlessRule
from recsys.evaluation.figures import Interval, Key, UserMeans
from recsys.evaluation.result import difference_text, plain
from recsys.formats import change, change_span, counted
from recsys.tasks.judging_side import BLESSED, MODEL

FLOOR, POPULARITY = "floor", "popularity"
_NO_BLESSED = "there is no other blessed model to compare with"
_NO_BASELINE = "no baseline was measured, so nothing says whether a plain method does better"
_NOT_REQUIRED = "no blessed model is compared with, because bless.over_blessed is 0"
_ROUNDING = 1e-12
_BLESSED_TITLE = "the last blessed model"


@dataclasses.dataclass(frozen=True)
class RuleOutcome:
    """The outcome of one threshold.

    Attributes:
        metric: The metric.
        slice: The slice; None: all queries.
        against: `floor`, a baseline, or `blessed_model`.
        value: The model's figure; None if there is none.
        other: The figure of the other system; None for a floor.
        least: Lowest value, or lowest ratio to the other figure.
        relative: Ratio of the two figures minus 1; None if there is none.
        interval: The interval of the figure, or of the relative difference.
        passed: Whether the lower end of the interval reaches the threshold.
        text: The outcome as a sentence.
        is_strongest: Whether the rule is on the strongest baseline.
    """

    metric: str
    slice: str | None
    against: str
    value: float | None
    other: float | None
    least: float
    relative: float | None
    interval: Interval | None
    passed: bool
    text: str
    is_strongest: bool = False


@dataclasses.dataclass(frozen=True)
class Decision:
    """Whether a model may be pushed, with the reasons.

    Attributes:
        blessed: Whether every threshold is passed.
        sentence: The decision with its main figure.
        reasons: One sentence for each threshold, with its figures.
        rules: The thresholds.
        warning: A sentence if the model is significantly worse than popularity or the strongest
            baseline, independent of the thresholds; else empty.
    """

    blessed: bool
    sentence: str
    reasons: list[str]
    rules: list[RuleOutcome]
    warning: str = ""


@dataclasses.dataclass(frozen=True)
class Evidence:
    """The figures that a decision is based on.

    Attributes:
        means: The figures of the model, of every baseline and of the last blessed model.
        confidence: Confidence of the intervals (0.5..1).
        left_out: Reasons why baselines were not measured, by name.
        has_blessed: Whether there is another blessed model.
        n_sampled: Number of random items that positives are ranked among; None: all items.
        small_slice: Minimum number of users of a slice for a rule on it.
        titles: Display name of each baseline, by name.
        cures: What to set in the config if a baseline is significantly better, by name.
        lower: Keys of the metrics of which lower values are better.
    """

    means: UserMeans
    confidence: float
    left_out: Mapping[str, str]
    has_blessed: bool
    n_sampled: int | None = None
    small_slice: int = 0
    titles: Mapping[str, str] = dataclasses.field(default_factory=dict)
    lower: frozenset[str] = frozenset()
    cures: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def gain(self, key: Key, interval: Interval) -> Interval:
        """Returns the interval of a difference as one of a gain: positive where it is better."""
        low, high = interval
        return (-high, -low) if key.metric in self.lower else interval

    def title(self, system: str) -> str:
        """Returns the display name of a baseline or of the last blessed model."""
        return _BLESSED_TITLE if system == BLESSED else self.titles.get(system, system)


def judge(config: BlessConfig, evidence: Evidence) -> Decision:
    """Returns the decision on the model.

    A threshold is reached if the worse end of the interval reaches it. A threshold without enough
    users, or without its slice or baseline, counts as missed. Without any baseline, the rules on
    the strongest baseline don't apply.

    Args:
        config: The thresholds.
        evidence: The figures.
    """
    rules = [ruling for rule in config.all_rules() for ruling in _outcomes(rule, evidence)]
    strongest = _strongest(config, evidence)
    if strongest is not None:
        alone = evidence.n_sampled is None and all(ruling.passed for ruling in rules)
        rules += _strongest_outcome(config, strongest, evidence, is_alone=alone)
    reasons = [ruling.text for ruling in rules]
    if strongest is None:
        reasons.append(_NO_BASELINE)
    if not evidence.has_blessed:
        is_required = any(rule.over_blessed for rule in config.all_rules())
        reasons.append(_NO_BLESSED if is_required else _NOT_REQUIRED)
    blessed = bool(rules) and all(ruling.passed for ruling in rules)
    if evidence.n_sampled is not None:
        blessed = False
        among = f"ranks among {evidence.n_sampled:,} random items decide nothing"
        reasons.insert(0, f"{among}: set evaluate.sampled_negatives to null")
    if not rules:
        reasons.insert(0, "there are no thresholds: set bless.at_least or bless.over")
    sentence = _sentence(blessed, rules, reasons, evidence)
    return Decision(blessed, sentence, reasons, rules, _warning(config.metric, strongest, evidence))


def _warning(metric: str, strongest: str | None, evidence: Evidence) -> str:
    """Returns a sentence if popularity or the strongest baseline is significantly better."""
    key, means = Key(MODEL, metric), evidence.means
    for other in (POPULARITY, strongest):
        if other is None or other not in means.baselines or not _is_lost(key, other, evidence):
            continue
        theirs, title = means.mean(key._replace(system=other)), evidence.title(other)
        cure = evidence.cures.get(other)
        return (
            f"Worse than {title}: {metric} is {means.mean(key):.4f}, and {theirs:.4f} with {title},"
            f" which takes seconds.{f' The config may lack {cure}.' if cure else ''}"
            " docs/evaluation.md, Worse than a baseline, says what to do."
        )
    return ""


def _is_lost(key: Key, other: str, evidence: Evidence) -> bool:
    """Returns whether the model is significantly worse than another system."""
    difference = evidence.means.difference(key, other)
    ends = None if difference is None else difference.difference_interval
    return ends is not None and evidence.gain(key, ends)[1] < -_ROUNDING


def _outcomes(rule: BlessRule, evidence: Evidence) -> Iterator[RuleOutcome]:
    key = Key(MODEL, rule.metric, rule.slice)
    if rule.at_least:
        yield _floor_outcome(key, rule.at_least, evidence)
    others: list[tuple[str, float]] = list(rule.over.items())
    if evidence.has_blessed:
        others.append((BLESSED, rule.over_blessed))
    for other, ratio in others:
        if ratio:
            yield _comparison(key, other, ratio, evidence)[0]
    if evidence.has_blessed and rule.sure_loss == "refuse":
        ruling, *_ = _comparison(key, BLESSED, 0.0, evidence, refuses_loss=True)
        # The picture of an interval has the line of a ratio, which this rule hasn't.
        yield dataclasses.replace(ruling, least=1.0, interval=None)


def _floor_outcome(key: Key, least: float, evidence: Evidence) -> RuleOutcome:
    value, interval = evidence.means.mean(key), evidence.means.interval(key)
    if _too_few(key, evidence):
        interval = None
    passed = interval is not None and interval[0] >= least - _ROUNDING
    required = f"at least {least:.4g}"
    if value is None or interval is None:
        text = f"{_subject(key)} can't be judged: {_missing_reason(key, value, evidence)}"
    else:
        text = (
            f"{_subject(key)} is {value:.4f} ({_confidence(evidence.confidence)} interval"
            f" {interval[0]:.4f} … {interval[1]:.4f}): {_reached(passed, value >= least, required)}"
        )
    return RuleOutcome(
        key.metric, key.slice, FLOOR, value, None, least, None, interval, passed, text
    )


def _comparison(
    key: Key,
    other: str,
    ratio: float,
    evidence: Evidence,
    name: str = "",
    *,
    refuses_loss: bool = False,
) -> tuple[RuleOutcome, bool, bool]:
    """Returns the outcome against another system, its ratio's alone, and whether the loss is sure.

    Non-inferiority: the whole interval is above a margin. Inferiority: the whole interval is below
    0. docs/evaluation.md has the sources.

    Args:
        key: The model's figure.
        other: The other system.
        ratio: Lowest ratio to its figure; 0: none.
        evidence: The figures.
        name: Title of the other system; its usual one by default.
        refuses_loss: Whether a model that is significantly worse is refused.
    """
    means, is_lost = evidence.means, False
    value, theirs = means.mean(key), means.mean(key._replace(system=other))
    difference = means.difference(key, other)
    margin = means.margin(key, other, _bound(key, ratio, evidence))
    if value is None or _too_few(key, evidence):
        margin = None
    # The model must beat a baseline, but need not be better than the served model.
    is_beaten = ratio >= 1 and other != BLESSED
    least_margin = _ROUNDING if is_beaten else -_ROUNDING
    reached = margin is not None and evidence.gain(key, margin)[0] >= least_margin
    reached = reached and (bool(value) or key.metric in evidence.lower)
    if not ratio:
        reached = margin is not None or other == BLESSED
    title, relative, interval = evidence.title(other), None, None
    if other in evidence.left_out:
        text = f"{title} was not measured: {evidence.left_out[other]}"
    elif difference is None or margin is None or value is None or theirs is None:
        why = _missing_reason(key, value, evidence)
        text = f"{_subject(key)} can't be compared with {title}: {why}"
    else:
        relative, interval = difference.relative, difference.interval
        is_lost = refuses_loss and _is_lost(key, other, evidence)
        by_value = _reaches(key, value, ratio, theirs, evidence)
        words = f"{'' if is_lost else 'not '}significantly worse"
        if ratio and not is_lost:
            words = _reached(reached, by_value, _required(ratio, other))
        shown = difference_text(dataclasses.asdict(difference), evidence.confidence)
        figures = f"{value:.4f}, that of {name or title} {theirs:.4f}"
        text = f"{_subject(key)} is {figures}: {shown}, {words}"
    passed, found = reached and not is_lost, (value, theirs, ratio, relative, interval)
    outcome = RuleOutcome(key.metric, key.slice, other, *found, passed, text)
    return outcome, reached, is_lost


def _strongest(config: BlessConfig, evidence: Evidence) -> str | None:
    """Returns the measured baseline with the best value of the deciding metric."""
    values = {
        name: evidence.means.mean(Key(name, config.metric)) for name in evidence.means.baselines
    }
    known = {name: value for name, value in values.items() if value is not None}
    best = min if config.metric in evidence.lower else max
    return best(known, key=lambda name: known[name], default=None)


def _strongest_outcome(
    config: BlessConfig, other: str, evidence: Evidence, *, is_alone: bool
) -> Iterator[RuleOutcome]:
    """Yields the outcome of the rule on the strongest baseline, if the config has one.

    Args:
        config: The thresholds.
        other: The strongest baseline.
        evidence: The figures.
        is_alone: Whether all other rules pass, so that changing this rule would bless the model.
    """
    refuses_loss, least = config.sure_loss == "refuse", config.over_strongest
    if not least and not refuses_loss:
        return
    key, name = Key(MODEL, config.metric), f"{_strongest_title(other, evidence)},"
    ruling, reached, is_lost = _comparison(
        key, other, least, evidence, name, refuses_loss=refuses_loss
    )
    if is_alone and not ruling.passed and ruling.relative is not None:
        cure = _cure(key, ruling, evidence, reached=reached, lost=is_lost)
        ruling = dataclasses.replace(ruling, text=f"{ruling.text}{cure}")
    yield dataclasses.replace(ruling, is_strongest=True)


def _strongest_title(baseline: str, evidence: Evidence) -> str:
    return f"{evidence.title(baseline)}, the strongest baseline"


def _cure(key: Key, ruling: RuleOutcome, evidence: Evidence, *, reached: bool, lost: bool) -> str:
    """Returns the config keys that would bless such a model; none if its metric is 0."""
    if not ruling.value:
        return ""
    keys = ["bless.sure_loss=allow"] if lost else []
    if not reached:
        ends = ruling.interval
        low = 0.0 if ends is None else 1.0 + evidence.gain(key, ends)[0]
        # Below the interval, since a ratio of 1 requires more than a tie.
        keys.append(f"bless.over_strongest={max(0, math.ceil(100 * low) - 1) / 100:g}")
    more = "; more held-out users narrow the interval" if not lost else ""
    return f" (to push it anyway: --set {' --set '.join(keys)}{more})"


def _subject(key: Key | RuleOutcome) -> str:
    return key.metric if key.slice is None else f"{key.metric} of {key.slice!r}"


def _too_few(key: Key, evidence: Evidence) -> bool:
    """Returns whether a slice has too few users for a reliable interval."""
    return key.slice is not None and evidence.means.users_of(key) < evidence.small_slice


def _missing_reason(key: Key, value: float | None, evidence: Evidence) -> str:
    if value is not None:
        return f"{counted(evidence.means.users_of(key), 'user is', 'users are')} too few"
    return "no query has a value" if key.slice is None else "these data have no such slice"


def _reaches(key: Key, value: float, ratio: float, theirs: float, evidence: Evidence) -> bool:
    """Returns whether a value reaches a ratio to another system's."""
    bound = _bound(key, ratio, evidence) * theirs
    return value <= bound if key.metric in evidence.lower else value >= bound


def _bound(key: Key, ratio: float, evidence: Evidence) -> float:
    """Returns the factor of the other's value at which a ratio of the config is reached.

    A tenth worse is 0.9 of the other's value or, if lower is better, 1.1 of it.
    """
    return 2.0 - ratio if key.metric in evidence.lower else ratio


def _reached(by_interval: bool, by_value: bool, required: str) -> str:
    short = "which the interval does not confirm" if by_value else "which is missed"
    return f"required: {required}, {'which is met' if by_interval else short}"


def _confidence(share: float) -> str:
    return f"{100 * share:.3g} %"


def _required(ratio: float, other: str) -> str:
    """Returns the requirement of a ratio as text, such as `at most 10.0 % worse`."""
    size = plain(change(ratio - 1)).lstrip("+−±")
    if ratio > 1:
        return f"at least {size} better"
    if ratio < 1:
        return f"at most {size} worse"
    return "not worse" if other == BLESSED else "better"


def _sentence(
    blessed: bool, rules: list[RuleOutcome], reasons: list[str], evidence: Evidence
) -> str:
    decision = "blessed" if blessed else "refused"
    failed = [ruling for ruling in rules if not ruling.passed]
    chosen = _headline(failed, first=BLESSED) if failed else _headline(rules)
    if chosen is None or (not blessed and not failed):
        return f"{decision.capitalize()}: {reasons[0]}"
    if chosen.against == FLOOR or chosen.relative is None or chosen.interval is None:
        return f"{chosen.text}; {decision}"
    size = plain(change(chosen.relative))
    confidence, other = evidence.confidence, evidence.title(chosen.against)
    if chosen.is_strongest:
        other = _strongest_title(chosen.against, evidence)
    what = f"{size} {_subject(chosen)} over {other}"
    ends = plain(change_span(chosen.interval))
    gain = evidence.gain(Key(MODEL, chosen.metric), chosen.interval)
    is_loss = chosen.is_strongest and gain[1] < 0
    required = _required(chosen.least, chosen.against)
    requirement = "" if blessed else f", required: {required}"
    requirement = ", significantly worse" if is_loss else requirement
    return f"{what}, {_confidence(confidence)} interval {ends}{requirement}; {decision}"


def _headline(rules: list[RuleOutcome], first: str | None = None) -> RuleOutcome | None:
    """Returns the most important comparison.

    The order of importance: a comparison with `first`, the strongest baseline, the served model,
    any other.
    """

    def importance(rule: RuleOutcome) -> tuple[bool, ...]:
        against = rule.against
        return against == first, rule.is_strongest, against == BLESSED, against != FLOOR

    return max(rules, key=importance, default=None)
