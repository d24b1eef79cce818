"""A step continues the newest result; a rerun continues the same one as the first run."""

import pytest

pytest.importorskip("tfx", reason="runs are kept in ML Metadata")

import ml_metadata as mlmd
from ml_metadata.proto import metadata_store_pb2 as pb
from tfx.types.standard_artifacts import Examples

from components.artifacts import Vocabularies
from components.resolvers import PreviousStrategy

pytestmark = pytest.mark.pipeline


class Runs:
    """A metadata store that runs of a step are put into."""

    def __init__(self):
        config = pb.ConnectionConfig()
        config.fake_database.SetInParent()
        self.store = mlmd.MetadataStore(config)
        self._step = self.store.put_execution_type(pb.ExecutionType(name="VocabularyGen"))
        self._types = {
            kind: self.store.put_artifact_type(pb.ArtifactType(name=kind.TYPE_NAME))
            for kind in (Examples, Vocabularies)
        }

    def artifact(self, kind):
        (id_,) = self.store.put_artifacts([pb.Artifact(type_id=self._types[kind])])
        made = kind()
        made.set_mlmd_artifact(pb.Artifact(id=id_, type_id=self._types[kind]))
        return made

    def run(self, examples, previous=(), config="{}"):
        """Returns what a run of the step made from `examples` and `previous`."""
        execution = pb.Execution(type_id=self._step)
        execution.custom_properties["config"].string_value = config
        (id_,) = self.store.put_executions([execution])
        made = self.artifact(Vocabularies)
        taken = [("interactions", examples), *(("previous", one) for one in previous)]
        events = [event(id_, pb.Event.INPUT, key, one.id) for key, one in taken]
        self.store.put_events([*events, event(id_, pb.Event.OUTPUT, "vocabularies", made.id)])
        return made

    def previous(self, examples, known, config="{}"):
        """Returns the ids that a run of the step would be given."""
        inputs = {"previous": known, "interactions": [examples]}
        found = PreviousStrategy({"config": config}).resolve_artifacts(self.store, inputs)
        assert found["interactions"] == [examples]
        return [one.id for one in found["previous"]]


def event(execution, kind, key, artifact):
    path = pb.Event.Path(steps=[pb.Event.Path.Step(key=key), pb.Event.Path.Step(index=0)])
    return pb.Event(execution_id=execution, artifact_id=artifact, type=kind, path=path)


@pytest.fixture
def runs():
    return Runs()


def test_the_first_run_has_none(runs):
    assert runs.previous(runs.artifact(Examples), []) == []


def test_new_data_go_on_from_the_newest(runs):
    older = runs.run(runs.artifact(Examples))
    newer = runs.run(runs.artifact(Examples), [older])
    assert runs.previous(runs.artifact(Examples), [older, newer]) == [newer.id]


def test_a_rerun_takes_what_the_first_run_took(runs):
    today = runs.artifact(Examples)
    older = runs.run(runs.artifact(Examples))
    newer = runs.run(today, [older])
    assert runs.previous(today, [newer, older]) == [older.id]


def test_a_rerun_of_the_first_run_has_none(runs):
    today = runs.artifact(Examples)
    assert runs.previous(today, [runs.run(today)]) == []


def test_equal_data_with_another_config_go_on(runs):
    today = runs.artifact(Examples)
    made = runs.run(today, config='{"min_count": 1}')
    assert runs.previous(today, [made], config='{"min_count": 2}') == [made.id]


def test_where_that_is_deleted_it_continues_from_the_newest(runs):
    today = runs.artifact(Examples)
    deleted = runs.run(runs.artifact(Examples))
    newest = runs.run(today, [deleted])
    assert runs.previous(today, [newest]) == [newest.id]
