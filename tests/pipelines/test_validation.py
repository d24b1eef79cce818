"""Drift, skew and anomalies, by TFX steps on small examples, beside numpy."""

import json
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("tfx", reason="needs the extra `pipeline`")
import tensorflow_data_validation as tfdv
from google.protobuf import text_format
from ml_metadata import MetadataStore
from ml_metadata.proto.metadata_store_pb2 import Execution
from tensorflow_metadata.proto.v0 import schema_pb2
from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component
from tfx.orchestration import metadata
from tfx.orchestration.pipeline import Pipeline
from tfx.types.standard_artifacts import Examples, Model, ModelBlessing

from components.artifacts import DeadLetters, Verdict, set_parquet_splits
from components.validation import DataGate, DriftLimits, compare
from pipelines.commands import committable, freeze_schemas
from pipelines.retrieval_pipeline import validate
from pipelines.runner import Runner
from recsys.config import Config, canonical_json
from recsys.data.example_files import write_examples
from recsys.errors import RecsysError

pytestmark = pytest.mark.pipeline


def statistics(**columns):
    import pandas as pd

    return tfdv.generate_statistics_from_dataframe(pd.DataFrame(columns))


def limits_of(most, **columns):
    return DriftLimits(what="interactions", max_drift=most, max_skew=most, **columns)


def compared(now, earlier, limits, kind="drift", schema=None):
    schema = tfdv.infer_schema(earlier) if schema is None else schema
    found = compare(kind, "train", now, earlier, schema, limits)
    return {(one.column, one.measure): one for one in found}


def test_l_infinity_is_the_largest_change_of_a_share():
    earlier = statistics(event=["view"] * 70 + ["buy"] * 30)
    now = statistics(event=["view"] * 40 + ["buy"] * 35 + ["share"] * 25)
    one = compared(now, earlier, limits_of(0.25))["event", "L-infinity"]
    assert one.value == pytest.approx(0.30)
    assert (one.limit, one.exceeds) == (0.25, True)
    assert one.note == "most of all the value 'view'"


def test_jensen_shannon_of_two_valued_numbers_is_the_closed_form():
    earlier = statistics(label=[0] * 50 + [1] * 50)
    now = statistics(label=[0] * 10 + [1] * 90)
    one = compared(now, earlier, limits_of(0.3))["label", "Jensen-Shannon"]
    p, q = np.array([0.5, 0.5]), np.array([0.1, 0.9])
    middle = (p + q) / 2
    expected = (p * np.log2(p / middle)).sum() / 2 + (q * np.log2(q / middle)).sum() / 2
    # TFDV's histograms spread a value over the edge of its bucket.
    assert one.value == pytest.approx(expected, abs=1e-4)
    assert not one.exceeds


def test_a_column_that_empties_is_found_though_its_values_did_not_change():
    earlier = statistics(price=[1.0, 2.0, 3.0, 4.0] * 25)
    now = statistics(price=[1.0, 2.0, 3.0, 4.0] * 10 + [None] * 60)
    found = compared(now, earlier, limits_of(0.3))
    assert found["price", "missing"].value == pytest.approx(0.6)
    assert found["price", "missing"].exceeds
    assert not found["price", "Jensen-Shannon"].exceeds
    gone = statistics(price=[None] * 100, other=[1] * 100)
    found = compared(gone, statistics(price=[1.0] * 100, other=[1] * 100), limits_of(0.3))
    assert found["price", "missing"].value == 1.0


def test_ids_have_no_limit_and_times_are_not_compared():
    earlier = statistics(user=["a"] * 50 + ["b"] * 50, time=[1, 2] * 50)
    now = statistics(user=["c"] * 100, time=[7, 8] * 50)
    found = compared(now, earlier, limits_of(0.3, ids=("user",), moving=("time",)))
    assert found["user", "L-infinity"].value == 1.0
    assert not found["user", "L-infinity"].exceeds
    assert found["time", "Jensen-Shannon"].value is None
    assert found["time", "Jensen-Shannon"].note == "not compared: it moves with time"


@pytest.mark.parametrize(("kind", "exceeds"), [("drift", True), ("skew", False)])
def test_a_comparator_of_the_committed_schema_goes_before_the_limit(kind, exceeds):
    earlier = statistics(event=["view"] * 70 + ["buy"] * 30)
    now = statistics(event=["view"] * 60 + ["buy"] * 40)
    schema = tfdv.infer_schema(earlier)
    schema.feature[0].drift_comparator.infinity_norm.threshold = 0.05
    one = compared(now, earlier, limits_of(None), kind, schema)["event", "L-infinity"]
    assert one.value == pytest.approx(0.1)
    assert one.exceeds is exceeds
    assert one.limit == (0.05 if exceeds else None)


def test_without_limit_everything_is_measured_and_nothing_exceeds():
    earlier, now = statistics(label=[0] * 100), statistics(label=[1] * 100)
    one = compared(now, earlier, limits_of(None))["label", "Jensen-Shannon"]
    assert (one.value, one.limit, one.exceeds) == (1.0, None, False)


@pytest.mark.parametrize(("n_users", "exceeds"), [(99, False), (100, True)])
@pytest.mark.parametrize("is_small_now", [True, False])
def test_few_users_are_measured_without_a_limit(n_users, exceeds, is_small_now):
    def split(event, n):
        return statistics(user_id=[f"u{i % n}" for i in range(400)], event=[event] * 400)

    now, earlier = (n_users, 400) if is_small_now else (400, n_users)
    found = compared(split("view", now), split("buy", earlier), limits_of(0.3, ids=("user_id",)))
    one = found["event", "L-infinity"]
    assert (one.value, one.limit, one.exceeds) == (1.0, 0.3 if exceeds else None, exceeds)


def test_columns_that_were_not_there_or_of_another_type_are_named():
    earlier = statistics(a=[1, 2] * 50, b=["x"] * 100)
    now = statistics(a=["1", "2"] * 50, b=["x"] * 100, c=[1] * 100)
    found = compared(now, earlier, limits_of(0.3), schema=tfdv.infer_schema(now))
    notes = {column: one.note for (column, _), one in found.items()}
    assert notes["a"] == "not compared: it was of another type"
    assert notes["c"] == "not compared: it had no value before"


# The steps in a pipeline of their own, between a source and a training that do nothing.


@component
def FakeGen(
    examples: OutputArtifact[Examples],
    dead_letters: OutputArtifact[DeadLetters],
    rows: Parameter[str],
) -> None:
    """Writes the split `train` of the columns in `rows`."""
    columns = json.loads(rows)
    folder = Path(examples.uri) / "Split-train"
    folder.mkdir(parents=True)
    with (folder / "data-00000-of-00001.parquet").open("wb") as sink:
        write_examples(pa.table(columns), sink)
    set_parquet_splits(examples, ["train"])
    counts = {"read": 10, "rejected": 0, "by_reason": {}}
    (Path(dead_letters.uri) / "summary.json").write_text(json.dumps(counts))


@component
def FakeTrainer(verdict: InputArtifact[Verdict], model: OutputArtifact[Model]) -> None:
    """Stands for the training."""
    (Path(model.uri) / "model").touch()


@component
def FakeEvaluator(
    model: InputArtifact[Model], blessing: OutputArtifact[ModelBlessing], blessed: Parameter[int]
) -> None:
    """Blesses the model, or not."""
    blessing.set_int_custom_property("blessed", blessed)
    blessing.set_int_custom_property("current_model_id", model.id)


class Days:
    """Runs the pipeline on the data of a night."""

    def __init__(self, root):
        self.root = root

    def config(self, **gate):
        return Config.model_validate_json(
            json.dumps(
                {
                    "name": "days",
                    "root": str(self.root),
                    "data": {
                        "interactions": {
                            "files": "x",
                            "columns": {"user": "u", "item": "i", "timestamp": "t"},
                        },
                        "gate": gate,
                    },
                }
            )
        )

    def __call__(self, rows, blessed=1, **gate):
        """Returns the state of each step; raises what stopped the run."""
        config = self.config(**gate)
        gen = FakeGen(rows=json.dumps(rows))
        valid = validate(
            "interactions", gen.outputs["examples"], config, ("user_id",), ("timestamp",)
        )
        data_gate = DataGate(
            interaction_validation=valid[-1].outputs["validation"],
            interaction_letters=gen.outputs["dead_letters"],
            config=canonical_json(config.data.gate),
            code="1",
        )
        trainer = FakeTrainer(verdict=data_gate.outputs["verdict"])
        evaluator = FakeEvaluator(model=trainer.outputs["model"], blessed=blessed)
        pipeline = Pipeline(
            pipeline_name="days",
            pipeline_root=str(self.root / "artifacts"),
            components=[gen, *valid, data_gate, trainer, evaluator],
            enable_cache=True,
            metadata_connection_config=metadata.sqlite_metadata_connection_config(
                str(self.root / "metadata.sqlite")
            ),
            # With the last one TFX packs no wheel of itself for workers elsewhere.
            beam_pipeline_args=["--runner=DirectRunner", "--extra_package=none"],
        )
        runner = QuietRunner(self.root, self.root / "serving")
        runner.run(pipeline)
        return runner.states

    def validation(self, number=-1):
        files = (self.root / "artifacts/DriftValidator.Interactions/validation").iterdir()
        newest = sorted(files, key=lambda folder: int(folder.name))[number]
        return json.loads((newest / "validation.json").read_text())


class QuietRunner(Runner):
    """Keeps the state of each step; there is no summary of a pipeline without a report."""

    def _run_steps(self, run):
        self.states = {}
        try:
            return super()._run_steps(run)
        except RecsysError as error:
            # The summary looks for steps that this pipeline lacks.
            if not isinstance(error.__cause__, KeyError):
                raise
            return {}

    def _run_step(self, node, *rest):
        id_ = super()._run_step(node, *rest)
        connection = metadata.sqlite_metadata_connection_config(str(self._root / "metadata.sqlite"))
        (execution,) = MetadataStore(connection).get_executions_by_id([id_])
        self.states[node.node_info.id] = execution.last_known_state
        return id_


def day(n_buys, seed=0, n=200):
    chance = random.Random(seed)
    return {
        "user_id": [f"u{i % 100}" for i in range(n)],
        "timestamp": [10**9 + 86_400 * seed + i for i in range(n)],
        "event": ["buy"] * n_buys + ["view"] * (n - n_buys),
        "rating": [float(chance.randrange(1, 6)) for _ in range(n)],
        "dwell": [None if seed == 1 and i < n // 10 else 1.0 for i in range(n)],
    }


def measured(validation, kind):
    return {
        one["column"]: one["value"]
        for one in validation["comparisons"]
        if one["kind"] == kind and one["value"] is not None and one["measure"] != "missing"
    }


@pytest.mark.slow
def test_days_are_compared_with_the_last_accepted_one_and_the_last_blessed_model(tmp_path):
    days = Days(tmp_path)

    days(day(40))
    first = days.validation()
    assert first["earlier"] == {"drift": False, "skew": False}
    assert first["comparisons"] == []

    states = days(day(40))
    steps = {name for name in states if not name.startswith("EarlierStatistics")}
    assert {states[name] for name in steps} == {Execution.CACHED}

    days(day(60, seed=1), blessed=0)
    second = days.validation()
    assert second["earlier"] == {"drift": True, "skew": True}
    assert measured(second, "drift")["event"] == pytest.approx(0.1)
    assert measured(second, "skew")["event"] == pytest.approx(0.1)
    missing = [one["value"] for one in second["comparisons"] if one["measure"] == "missing"]
    assert missing == pytest.approx([0.1, 0.1])  # Drift and skew of `dwell`.
    assert "timestamp" not in measured(second, "drift")

    # Newer data changes nothing about what older data is compared with.
    states = days(day(40))
    assert {states[name] for name in steps} == {Execution.CACHED}

    # A fault does not pass on the second night, as refused data is no measure.
    for seed in (2, 3):
        with pytest.raises(RecsysError) as stopped:
            days(day(160, seed=seed))
        assert stopped.value.code == "R244"
        assert "Column 'event' of the interactions (split 'train')" in stopped.value.rule
        assert "its distance is 0.500" in stopped.value.rule
        assert "data.gate.max_drift" in stopped.value.cure

    # Small steps each night add up for the model that was blessed long ago.
    days(day(80, seed=4), blessed=0)
    with pytest.raises(RecsysError) as stopped:
        days(day(101, seed=5))
    assert stopped.value.code == "R245"
    assert "its distance is 0.305" in stopped.value.rule
    third = days.validation()
    assert measured(third, "drift")["event"] == pytest.approx(0.105)
    assert measured(third, "skew")["event"] == pytest.approx(0.305)

    days(day(101, seed=5), max_skew=None)

    # The model of the night before is the newest that was blessed.
    days(day(110, seed=6))
    assert measured(days.validation(), "skew")["event"] == pytest.approx(0.045)


def test_a_committed_schema_lets_lists_have_any_length():
    text = """
    feature { name: "genres" type: BYTES value_count { min: 2 max: 2 } presence { min_count: 1 } }
    feature { name: "title" type: BYTES value_count { min: 1 max: 1 } }
    """
    genres, title = text_format.Parse(committable(text), schema_pb2.Schema()).feature
    assert (genres.value_count.min, genres.value_count.max) == (1, 0)
    assert genres.presence.min_count == 1
    assert (title.value_count.min, title.value_count.max) == (1, 1)


def test_without_a_run_there_is_no_schema_to_commit(tmp_path):
    with pytest.raises(RecsysError, match="R246"):
        freeze_schemas(Days(tmp_path).config(), tmp_path / "schemas", force=False)


@pytest.mark.slow
@pytest.mark.thorough
def test_a_schema_of_the_last_run_can_be_committed_and_stops_what_breaks_it(tmp_path):
    days = Days(tmp_path)
    committed = tmp_path / "schemas"
    days(day(40))
    (file,) = freeze_schemas(days.config(), committed, force=False)
    assert file == committed / "interactions.pbtxt"
    schema = tfdv.load_schema_text(str(file))
    assert {feature.name for feature in schema.feature} == set(day(40))

    with pytest.raises(RecsysError) as refused:
        freeze_schemas(days.config(), committed, force=False)
    assert refused.value.code == "R247"
    file.write_text("broken")
    freeze_schemas(days.config(), committed, force=True)
    assert tfdv.load_schema_text(str(file)) == schema

    shared = day(40)
    shared["event"] = [*shared["event"][:-1], "share"]
    with pytest.raises(RecsysError) as stopped:
        days(shared, schema_dir=str(committed))
    assert stopped.value.code == "R242"
    assert "column 'event'" in stopped.value.rule
    assert "share" in stopped.value.rule
    assert days.validation()["anomalies"][0]["column"] == "event"

    (feature,) = [feature for feature in schema.feature if feature.name == "event"]
    feature.distribution_constraints.min_domain_mass = 0.9
    tfdv.write_schema_text(schema, str(file))
    days(shared, schema_dir=str(committed))
