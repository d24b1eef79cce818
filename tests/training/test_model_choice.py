"""A comparison of models before a training: its figures, the choice, a kill, and later nights."""

import itertools
import json
import time

import pytest
from training_runs import Run, train_here
from warm_worlds import DAY, World

from benchmarks.public_splits import Csr, write_data_folder
from recsys.config import TrainStage
from recsys.config.load import load_stage
from recsys.data.dataset import open_data
from recsys.data.split import SplitRule
from recsys.errors import ConfigError, RecsysError
from recsys.models.summary import read_summary
from recsys.system.events import EventReader
from recsys.tasks.retrieval.training.auto import candidates
from recsys.training import model_choice
from recsys.training import stage as stage_module
from recsys.training.checkpoint import DAMAGED
from recsys.training.model_choice import TimeLimit, choose_model
from recsys.training.training_result import Progress

STAGE = {
    "model": {"type": "auto", "minutes": 20, "dim": 8},
    "train": {"epochs": 2, "batch_size": 32, "uniform_negatives": 16},
}
FIGURES = (0.2, 0.1, 0.4, 0.3, None)


def as_stage(**model):
    own = {**STAGE, "model": {**STAGE["model"], **model}}
    return TrainStage.model_validate_json(json.dumps(own))


def write_sets(folder):
    """Users take items of one of four tastes, without an order."""
    lists = [[4 * ((user + n) % 10) + user % 4 for n in range(6)] for user in range(80)]
    write_data_folder(Csr.of_lists(lists, 40), folder, rule=SplitRule("random", "none"))
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A data folder of ordered events, for which there are five candidates."""
    folder = tmp_path_factory.mktemp("ordered")
    lists = [[(user + n) % 40 for n in range(6)] for user in range(60)]
    write_data_folder(Csr.of_lists(lists, 40), folder, rule=SplitRule("last_out", "file"))
    return open_data(folder)


@pytest.fixture
def trained(monkeypatch):
    """Replaces the trainings by given figures; lists the candidates' folders and time limits."""
    calls, figures = [], list(FIGURES)

    def train(stage, data, checkpoints, limit):
        calls.append((checkpoints.name, limit.seconds))
        figure = figures[len(calls) - 1]
        if isinstance(figure, BaseException):
            raise figure
        metric = model_choice._validated(stage).metric
        looks = [] if figure is None else [{"step": 1, metric: x} for x in (figure, figure / 2)]
        return Progress(validations=looks)

    monkeypatch.setattr(model_choice, "train_validated", train)
    return calls, figures


def read_choice(checkpoints):
    (file,) = (checkpoints / "choices").iterdir()
    return json.loads(file.read_text())


@pytest.mark.parametrize("minutes", [0, -1, "five", float("nan"), True])
def test_minutes_must_be_a_number_above_0(minutes, tmp_path):
    (tmp_path / "stage.json").write_text(
        json.dumps({"model": {"type": "auto", "minutes": minutes}})
    )
    with pytest.raises(ConfigError, match=r"R107.*model\.minutes"):
        load_stage(tmp_path / "stage.json", TrainStage)


@pytest.mark.parametrize(("metric", "best"), [("recall@10", 2), ("ndcg@5", 2)])
def test_the_best_figure_of_the_file_is_chosen(metric, best, data, trained, tmp_path):
    stage = as_stage()
    train = stage.train.model_validate({"validation": {"metric": metric}}, strict=False)
    stage = stage.model_copy(update={"train": train})
    chosen, record = choose_model(stage, data, None, tmp_path)
    known = candidates(stage, data)
    assert record == read_choice(tmp_path)
    assert [one["name"] for one in record["candidates"]] == [*known]
    assert [one["value"] for one in record["candidates"]] == [*FIGURES]
    assert record["metric"] == metric
    assert record["chosen"] == [*known][best]
    assert chosen == known[record["chosen"]]


def test_a_killed_comparison_goes_on_and_a_made_choice_stays(data, trained, tmp_path):
    calls, figures = trained
    figures[2:2] = [KeyboardInterrupt()]
    figures += FIGURES
    with pytest.raises(KeyboardInterrupt):
        choose_model(as_stage(), data, None, tmp_path)
    assert len(read_choice(tmp_path)["candidates"]) == 2
    chosen, record = choose_model(as_stage(), data, None, tmp_path)
    assert [name for name, _ in calls] == ["0", "1", "2", "2", "3", "4"]
    assert choose_model(as_stage(), data, None, tmp_path) == (chosen, record)
    assert len(calls) == 6
    # Another time is another run.
    choose_model(as_stage(minutes=1), data, None, tmp_path)
    assert len(calls) == 11


def test_a_truncated_record_is_named(data, trained, tmp_path):
    choose_model(as_stage(), data, None, tmp_path)
    (file,) = (tmp_path / "choices").iterdir()
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(RecsysError, match=rf"{DAMAGED}.*{file.name}"):
        choose_model(as_stage(), data, None, tmp_path)


@pytest.mark.parametrize("figures", [[None] * 5, [None, None, 0.3, None, None]])
def test_without_two_figures_the_shape_decides(figures, data, trained, tmp_path, capsys):
    trained[1][:] = figures
    chosen, record = choose_model(as_stage(), data, None, tmp_path)
    assert record["chosen"] == record["candidates"][0]["name"]
    assert chosen == next(iter(candidates(as_stage(), data).values()))
    assert "20 minutes are too few" in capsys.readouterr().err


def test_a_candidate_whose_loss_is_not_finite_is_not_chosen(data, trained, tmp_path):
    trained[1][0] = RecsysError("R322", "The loss must be finite.", "Lower it.", "nan")
    _, record = choose_model(as_stage(), data, None, tmp_path)
    assert [one["value"] for one in record["candidates"]] == [None, *FIGURES[1:]]
    trained[1][5:] = [RecsysError("R375", "Stopped.", "Again.", "SIGTERM")]
    with pytest.raises(RecsysError, match="R375"):
        choose_model(as_stage(minutes=1), data, None, tmp_path)


def test_candidates_share_the_time_that_is_left(data, trained, tmp_path, monkeypatch):
    clock = itertools.count(step=100.0)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    choose_model(as_stage(minutes=50), data, None, tmp_path)
    spent = [one["seconds"] for one in read_choice(tmp_path)["candidates"]]
    left = [3000 - sum(spent[:n]) for n in range(5)]
    limits = [seconds for _, seconds in trained[0]]
    assert limits == pytest.approx([left[n] / (5 - n) for n in range(5)])


def test_a_time_limit_ends_a_first_epoch_and_no_later_one(monkeypatch):
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    class Model:
        stop_training = False

    def limited(seconds):
        limit = TimeLimit(seconds)
        limit.set_model(Model())
        return limit

    limit = limited(100)
    now = 101.0
    limit.on_train_batch_end(15)
    assert not limit.model.stop_training
    limit.on_train_batch_end(16)
    assert limit.model.stop_training

    now = 0.0
    limit = limited(100)
    for moment, stops in ((40.0, False), (70.0, False), (71.0, False), (99.5, True)):
        now = moment
        limit.on_epoch_end(0)
        limit.on_train_batch_end(16)
        assert limit.model.stop_training == stops


def test_a_warm_start_keeps_the_choice_and_compares_nothing(data, trained, tmp_path):
    calls, _ = trained
    earlier, record = choose_model(as_stage(), data, None, tmp_path)
    assert record["chosen"] != record["candidates"][0]["name"]
    chosen, none = choose_model(as_stage(minutes=1), data, earlier, tmp_path)
    assert (chosen.model, chosen.train) == (earlier.model, earlier.train)
    assert none is None
    assert len(calls) == len(FIGURES)


@pytest.mark.slow
def test_a_run_that_ends_after_the_choice_trains_what_was_chosen(
    data, trained, tmp_path, monkeypatch
):
    calls, _ = trained
    with monkeypatch.context() as patched:
        patched.setattr(stage_module, "_fit", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train_here(STAGE, data.folder, tmp_path / "model")
    record = read_choice(tmp_path / "checkpoints")
    train_here(STAGE, data.folder, tmp_path / "model")
    assert len(calls) == len(FIGURES)  # It compares nothing again.
    assert json.loads((tmp_path / "model" / "training.json").read_text())["choice"] == record
    terms = read_summary(tmp_path / "model")["stage"]["model"]["terms"]
    assert (record["chosen"], len(terms)) == ("mean and transitions", 1)


@pytest.mark.thorough
def test_nights_train_the_model_that_the_comparison_chose(tmp_path):
    """A first night compares; the next one continues its model, on newer data."""
    ids = [f"u{n}" for n in range(40)], [f"i{n}" for n in range(20)]
    world = World(*ids)
    nights = [
        world.save(tmp_path / f"data{n}", cut=cut * DAY, days=(1, cut), per_user=8)
        for n, cut in enumerate((6, 10))
    ]
    stage = {**STAGE, "warm_start": {"epochs": 1}}
    train_here(stage, nights[0], tmp_path / "cold" / "model")
    training = json.loads((tmp_path / "cold" / "model" / "training.json").read_text())
    record = training["choice"]
    assert record == read_choice(tmp_path / "cold" / "checkpoints")
    figures = {one["name"]: one["value"] for one in record["candidates"]}
    assert None not in figures.values()
    assert figures[record["chosen"]] == max(figures.values())
    model = read_summary(tmp_path / "cold" / "model")["stage"]["model"]
    chosen = candidates(TrainStage.model_validate_json(json.dumps(stage)), open_data(nights[0]))
    dumped = chosen[record["chosen"]].model_dump(mode="json")["model"]
    assert model == {**dumped, "history_of": model["history_of"]}
    words = ["--base", tmp_path / "cold" / "model"]
    train_here(stage, nights[1], tmp_path / "warm" / "model", words=words)
    training = json.loads((tmp_path / "warm" / "model" / "training.json").read_text())
    assert training["warm_start"] is not None
    assert training["choice"] is None
    assert not (tmp_path / "warm" / "checkpoints" / "choices").exists()
    assert read_summary(tmp_path / "warm" / "model")["stage"]["model"] == model


@pytest.mark.faults
@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_that_is_killed_after_the_choice_trains_what_was_chosen(processes, tmp_path):
    run = Run(tmp_path / "run", write_sets(tmp_path / "data"), STAGE, 2, processes)
    process = run.start()

    def notes():
        return [event["text"] for event in EventReader(run.events) if event["kind"] == "note"]

    while process.poll() is None and not any("chose the model" in text for text in notes()):
        time.sleep(0.02)
    process.kill()
    process.communicate()
    record = read_choice(run.folder / "checkpoints")
    assert record["chosen"] is not None
    run.finish()
    assert not any(text.startswith("Compares") for text in notes())
    assert read_choice(run.folder / "checkpoints") == record == run.summary()["choice"]
