"""A changed bit in vocabularies, features or events is refused with the file's name."""

import shutil

import pytest
from training_runs import STAGE, on_devices

from recsys.config import TrainStage
from recsys.data.dataset import PARTS, Data, seal_inputs
from recsys.errors import RecsysError
from recsys.evaluation.api import evaluate
from recsys.evaluation.result import EvaluationResult
from recsys.models import TwoTower
from recsys.tasks.model_folder import load_model
from recsys.tasks.retrieval.probe import save_candidates
from recsys.training.trainer import Trainer
from recsys.vectors import ItemVectors


def files_of(folder, *parts):
    return sorted(path for part in parts for path in (folder / part).rglob("*") if path.is_file())


def refused(path, use):
    """Changes a bit in the middle of a file, and returns what `use` says of it."""
    content = path.read_bytes()
    middle = len(content) // 2
    changed = bytes([content[middle] ^ 0x10])
    path.write_bytes(content[:middle] + changed + content[middle + 1 :])
    try:
        with pytest.raises(RecsysError) as caught:
            use()
    finally:
        path.write_bytes(content)
    return caught.value


@pytest.fixture(scope="module")
def folders(exported_world, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    for name, source in {"evaluated": exported_world.data, "trained": data}.items():
        shutil.copytree(source, folder / name)
        seal_inputs(folder / name)
    shutil.copytree(exported_world.model, folder / "model")
    return folder


def test_a_model_folder_with_other_vocabularies_or_features_is_not_read(folders):
    paths = files_of(folders / "model", *PARTS)
    assert {path.suffix for path in paths} >= {".npy", ".parquet"}
    for path in paths:
        error = refused(path, lambda: load_model(folders / "model"))
        assert error.code == "R221"
        assert str(path) in str(error)
    load_model(folders / "model")


def test_changed_item_embeddings_are_not_published(folders):
    folder = folders / "model"
    trained = load_model(folder)
    save_candidates(folder, trained.model, trained.inputs)
    for path in [folder / "candidates.npy", *files_of(folder, "catalogue")]:
        error = refused(path, lambda: ItemVectors.open(folder))
        assert error.code == "R221"
        assert str(path) in str(error)
    assert len(ItemVectors.open(folder).embeddings) == trained.catalogue.n_rows


def test_an_evaluation_reads_no_changed_data(folders):
    folder = folders / "evaluated"
    for path in files_of(folder, "store/eval", "vocabulary", "catalogue"):
        error = refused(path, lambda: evaluate(folders / "model", Data(folder), progress=False))
        assert error.code == "R221"
        assert str(path) in str(error)


def test_an_evaluation_that_is_no_json_any_more_is_named(tmp_path):
    path = EvaluationResult({"metrics": {"mrr": 0.5}}).save(tmp_path)
    path.write_text(path.read_text().replace('"mrr"', 'mrr"'))
    with pytest.raises(RecsysError, match=rf"R221.*{path}.*JSONDecodeError.*Delete"):
        EvaluationResult.load(tmp_path)


def test_a_training_from_a_program_reads_no_changed_data(folders, tmp_path):
    stage = TrainStage.model_validate(STAGE)
    folder = folders / "trained"

    def train():
        data = Data(folder)
        model = TwoTower.from_config(stage, data)
        Trainer(stage.train, tmp_path / "checkpoints").fit(model, data)

    paths = files_of(folder, "store/train", "catalogue")
    with on_devices(1):
        for path in paths:
            error = refused(path, train)
            assert str(path) in str(error) or error.code == "R230"
            assert error.code in ("R221", "R230")
    assert not (tmp_path / "checkpoints").exists()
