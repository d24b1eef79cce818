"""The data that the gate accepts, and the errors for data that it stops."""

import json

import pytest

pytest.importorskip("tfx", reason="needs the extra `pipeline`")

from components.artifacts import DeadLetters, Validation, Verdict
from components.validation import DataGate, check_validation
from recsys.config import GateConfig, canonical_json
from recsys.data.dead_letters import check_rejected
from recsys.errors import RecsysError
from recsys.system.events import shown_events

pytestmark = pytest.mark.pipeline


def distance(kind="drift", column="event", value=0.5, limit=0.3, measure="L-infinity", note=""):
    return {
        "kind": kind,
        "split": "train",
        "column": column,
        "measure": measure,
        "value": value,
        "limit": limit,
        "note": note,
        "exceeds": value > limit,
    }


def found(anomalies=(), comparisons=(), what="interactions"):
    return {"what": what, "anomalies": list(anomalies), "comparisons": list(comparisons)}


@pytest.mark.parametrize(
    ("rejected", "read", "passes"), [(0, 0, True), (0, 100, True), (1, 100, True), (2, 100, False)]
)
def test_the_share_of_rejected_rows_may_reach_the_limit(tmp_path, rejected, read, passes):
    counts = {"read": read, "rejected": rejected, "by_reason": {"empty id": 1, "bad time": 9}}
    (tmp_path / "summary.json").write_text(json.dumps(counts))
    if passes:
        check_rejected("items", tmp_path, 0.01)
        return
    expected = (
        rf"R241.* 1 % .* 2 % .*2 of 100.*bad time.*{tmp_path}.*data\.gate\.max_rejected_share"
    )
    with pytest.raises(RecsysError, match=expected):
        check_rejected("items", tmp_path, 0.01)


def test_rows_that_are_no_utf8_name_the_key_of_the_encoding(tmp_path):
    counts = {"read": 100, "rejected": 9, "by_reason": {"empty id": 1, "not UTF-8 text": 8}}
    (tmp_path / "summary.json").write_text(json.dumps(counts))
    with pytest.raises(RecsysError, match=r"R241.*set data\.items\.csv\.encoding"):
        check_rejected("items", tmp_path, 0.01)


def test_data_without_findings_passes(tmp_path):
    check_validation(
        found(comparisons=[distance(value=0.3), distance("skew", value=0.1)]), tmp_path
    )


def test_an_anomaly_names_column_split_and_file(tmp_path):
    anomalies = [
        {"split": "eval", "column": "event", "text": "Unexpected string values: share (~2%)."},
        {"split": "eval", "column": "", "text": "The dataset has too few examples."},
    ]
    named = rf"R242.*'eval'.*'event'.*~2%.*1 more.*interactions\.pbtxt.*{tmp_path}/validation\.json"
    with pytest.raises(RecsysError, match=named):
        check_validation(found(anomalies, [distance()]), tmp_path)


def test_drift_names_column_measure_value_limit_and_the_way_out(tmp_path):
    beyond = [
        distance("skew", "price", 0.9),
        distance(value=0.4, note="most of all the value 'view'"),
        distance(column="rating", value=0.35, measure="Jensen-Shannon"),
    ]
    named = r"R244.*'event'.*'train'.*0\.300.*0\.400.*L-infinity.*'view'.*2 more.*max_drift"
    with pytest.raises(RecsysError, match=named):
        check_validation(found(comparisons=beyond, what="items"), tmp_path)


def test_skew_has_a_code_and_a_key_of_its_own(tmp_path):
    with pytest.raises(RecsysError) as stopped:
        check_validation(found(comparisons=[distance("skew", "price")]), tmp_path)
    assert stopped.value.code == "R245"
    assert "the data that the last blessed model was trained on" in stopped.value.rule
    assert "data.gate.max_skew" in stopped.value.cure


class Gate:
    """Artifacts for the gate's own executor."""

    def __init__(self, folder):
        self.folder = folder
        self.inputs = {}

    def add(self, side, what, rejected=0, statistics_id=7, remarks=(), **findings):
        """Adds one kind of data."""
        validation = self._artifact(Validation, f"{what}-validation")
        validation.set_int_custom_property(f"{what}_statistics_id", statistics_id)
        content = json.dumps(found(what=what, **findings))
        (self.folder / f"{what}-validation" / "validation.json").write_text(content)
        (self.folder / f"{what}-validation" / f"statistics-{what}-train.html").touch()
        letters = self._artifact(DeadLetters, f"{what}-letters")
        counts = {"read": 10, "rejected": rejected, "by_reason": {"bad": rejected}}
        counts["gate_remarks"] = list(remarks)
        (self.folder / f"{what}-letters" / "summary.json").write_text(json.dumps(counts))
        self.inputs |= {f"{side}_validation": [validation], f"{side}_letters": [letters]}

    def judge(self):
        """Returns the verdict's artifact."""
        verdict = self._artifact(Verdict, "verdict")
        executor = DataGate.EXECUTOR_SPEC.executor_class()
        parameters = {"config": canonical_json(GateConfig()), "code": "1"}
        executor.Do(self.inputs, {"verdict": [verdict]}, parameters)
        return verdict

    def _artifact(self, kind, name):
        (self.folder / name).mkdir()
        artifact = kind()
        artifact.uri = str(self.folder / name)
        return artifact


def test_the_verdict_has_all_sides_their_pages_and_whose_statistics_were_accepted(tmp_path):
    gate = Gate(tmp_path)
    gate.add("interaction", "interactions", statistics_id=7)
    gate.add("user", "users", statistics_id=9, comparisons=[distance(value=0.1)])
    verdict = gate.judge()
    written = json.loads((tmp_path / "verdict/verdict.json").read_text())
    assert list(written) == ["interactions", "users"]
    assert written["users"]["comparisons"] == [distance(value=0.1)]
    assert sorted(path.name for path in (tmp_path / "verdict").glob("*.html")) == [
        "statistics-interactions-train.html",
        "statistics-users-train.html",
    ]
    assert verdict.get_int_custom_property("interactions_statistics_id") == 7
    assert verdict.get_int_custom_property("users_statistics_id") == 9
    assert verdict.get_int_custom_property("items_statistics_id") == 0


def test_the_gate_says_what_is_remarkable(tmp_path):
    gate = Gate(tmp_path)
    gate.add("interaction", "interactions", remarks=["2 of 300 good rows are positives"])
    seen = []
    with shown_events(seen.append):
        gate.judge()
    assert [(event["kind"], event["step"], event["text"]) for event in seen] == [
        ("note", "DataGate", "2 of 300 good rows are positives")
    ]


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        ({"rejected": 1}, "R241"),
        ({"anomalies": [{"split": "all", "column": "x", "text": "y"}]}, "R242"),
        ({"comparisons": [distance()]}, "R244"),
    ],
    ids=["letters", "anomaly", "drift"],
)
@pytest.mark.parametrize(
    ("side", "what"), [("interaction", "interactions"), ("item", "items"), ("user", "users")]
)
def test_each_side_can_stop_the_run(tmp_path, side, what, bad, code):
    gate = Gate(tmp_path)
    gate.add(side, what, **bad)
    if side != "interaction":
        gate.add("interaction", "interactions")
    with pytest.raises(RecsysError) as stopped:
        gate.judge()
    assert stopped.value.code == code
    assert what in stopped.value.rule
    assert not (tmp_path / "verdict/verdict.json").exists()
