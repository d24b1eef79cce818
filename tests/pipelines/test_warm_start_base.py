"""Which model a night goes on from: the last good one, and for a rerun what the first run took."""

import pytest

pytest.importorskip("tfx", reason="runs are kept in ML Metadata")

import ml_metadata as mlmd
from ml_metadata.proto import metadata_store_pb2 as pb
from tfx.types.standard_artifacts import Model, ModelBlessing

from components.artifacts import InteractionData
from components.metadata import CURRENT_MODEL
from components.resolvers import WarmBaseStrategy

pytestmark = pytest.mark.pipeline


class Nights:
    """A metadata store that nights are put into, and the folders of their models."""

    def __init__(self, folder):
        config = pb.ConnectionConfig()
        config.fake_database.SetInParent()
        self.store, self._folder = mlmd.MetadataStore(config), folder
        self._step = self.store.put_execution_type(pb.ExecutionType(name="Trainer"))
        self._types = {
            kind: self.store.put_artifact_type(pb.ArtifactType(name=kind.TYPE_NAME))
            for kind in (InteractionData, Model)
        }
        self.models, self.blessings = [], []

    def data(self):
        return self._artifact(InteractionData)

    def _artifact(self, kind):
        (id_,) = self.store.put_artifacts([pb.Artifact(type_id=self._types[kind])])
        made = kind()
        made.set_mlmd_artifact(pb.Artifact(id=id_, type_id=self._types[kind]))
        made.uri = str(self._folder / str(id_))
        return made

    def train(self, data, base=(), config="{}", blessed=True):
        """Returns the model that a night made of `data`, from `base`."""
        execution = pb.Execution(type_id=self._step)
        execution.custom_properties["config"].string_value = config
        (id_,) = self.store.put_executions([execution])
        model = self._artifact(Model)
        (self._folder / str(model.id)).mkdir()
        (self._folder / str(model.id) / "model.json").touch()
        taken = [event(id_, pb.Event.INPUT, "data", data.id)]
        taken += [event(id_, pb.Event.INPUT, "base", one.id) for one in base]
        self.store.put_events([*taken, event(id_, pb.Event.OUTPUT, "model", model.id)])
        self.models.append(model)
        blessing = ModelBlessing()
        blessing.set_int_custom_property(CURRENT_MODEL, model.id)
        blessing.set_int_custom_property("blessed", int(blessed))
        self.blessings.append(blessing)
        return model

    def base(self, data, config="{}"):
        """Returns the ids of what a night would go on from."""
        given = {"model": self.models, "blessing": self.blessings, "pushed": [], "data": [data]}
        found = WarmBaseStrategy({"config": config}).resolve_artifacts(self.store, given)
        assert found["data"] == [data]
        return [one.id for one in found["model"]]


def event(execution, kind, key, artifact):
    path = pb.Event.Path(steps=[pb.Event.Path.Step(key=key), pb.Event.Path.Step(index=0)])
    return pb.Event(execution_id=execution, artifact_id=artifact, type=kind, path=path)


@pytest.fixture
def nights(tmp_path):
    return Nights(tmp_path)


def test_the_first_night_has_none_and_neither_has_its_rerun(nights):
    first = nights.data()
    assert nights.base(first) == []
    nights.train(first)
    assert nights.base(first) == []


def test_a_night_continues_from_the_last_blessed_model_not_from_a_refused_one(nights):
    good = nights.train(nights.data())
    refused = nights.train(nights.data(), [good], blessed=False)
    assert refused.id > good.id
    assert nights.base(nights.data()) == [good.id]


def test_a_rerun_takes_what_the_first_run_took_though_its_own_model_was_blessed(nights):
    older, today = nights.train(nights.data()), nights.data()
    newer = nights.train(today, [older])
    assert nights.base(today) == [older.id]
    assert nights.base(nights.data()) == [newer.id]


def test_a_return_to_an_older_config_takes_what_that_took(nights):
    older, today = nights.train(nights.data()), nights.data()
    nights.train(today, [older], config='{"epochs": 1}')
    newest = nights.train(today, [older], config='{"epochs": 2}')
    assert nights.base(today, config='{"epochs": 1}') == [older.id]
    assert nights.base(today, config='{"epochs": 3}') == [newest.id]


def test_a_model_whose_folder_is_gone_is_no_base(nights, tmp_path):
    older, newer = nights.train(nights.data()), nights.train(nights.data())
    (tmp_path / str(newer.id) / "model.json").unlink()
    assert nights.base(nights.data()) == [older.id]


def test_a_rerun_whose_base_is_deleted_continues_from_the_last_good_one(nights):
    gone, today = nights.train(nights.data()), nights.data()
    made = nights.train(today, [gone])
    nights.models.remove(gone)
    assert nights.base(today) == [made.id]


def test_a_rerun_needs_the_files_of_its_model_and_not_those_of_its_base(nights, tmp_path):
    older, today = nights.train(nights.data()), nights.data()
    made = nights.train(today, [older])
    (tmp_path / str(older.id) / "model.json").unlink()
    assert nights.base(today) == [older.id]
    (tmp_path / str(made.id) / "model.json").unlink()
    assert nights.base(today) == []
