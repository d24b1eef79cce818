"""The folders of a training: whose they are, and which of them go."""

import os
import subprocess
import sys

import pytest
from training_runs import STAGE, write_data

from recsys.config import TrainStage
from recsys.errors import RecsysError
from recsys.training.run_folders import RunFolders

NAMES = [f"{n:016x}" for n in range(5)]


@pytest.fixture(name="data", scope="module")
def _data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    return folder


def stage(**train):
    return TrainStage.model_validate({**STAGE, "train": {**STAGE["train"], **train}}, strict=False)


def folders(root, name=NAMES[0], identity=()):
    return RunFolders(dict(identity), root / "checkpoints" / name, root / "tensorboard" / name)


def saved(root, name, time):
    """The folder of a run that began long ago, and saved at `time`."""
    step = root / "checkpoints" / name / "last" / "100"
    step.mkdir(parents=True)
    os.utime(step, (time, time))
    os.utime(step.parent.parent, (1, 1))
    return step.parent.parent


def test_the_same_training_has_the_same_folder_and_another_has_another(data, tmp_path):
    def folder(**train):
        return RunFolders.of_run(tmp_path, stage(**train), data).checkpoints

    assert folder() == folder()
    assert folder(seed=1) != folder()
    # How often it saves changes nothing of what it computes.
    assert folder(checkpoint={"every_steps": 7}) == folder()


def test_other_data_have_another_folder(data, tmp_path):
    before = RunFolders.of_run(tmp_path, stage(), data)
    titles = data / "catalogue" / "titles.parquet"
    content = titles.read_bytes()
    titles.write_bytes(content + b" ")
    after = RunFolders.of_run(tmp_path, stage(), data)
    titles.write_bytes(content)
    assert after.identity["data"] != before.identity["data"]
    assert after.identity["config"] == before.identity["config"]


def test_of_other_runs_the_two_that_saved_last_stay(tmp_path):
    own, *others = NAMES
    old = [saved(tmp_path, name, time) for name, time in zip(others, (40, 10, 30, 20), strict=True)]
    own = saved(tmp_path, own, 5)
    (tmp_path / "checkpoints" / "mine.txt").write_text("not ours")
    removed = folders(tmp_path).remove_others()
    assert sorted(removed) == sorted([old[1], old[3]])
    assert all(path.exists() for path in (own, old[0], old[2]))
    assert not old[1].exists()
    assert (tmp_path / "checkpoints" / "mine.txt").exists()


def test_a_checkpoint_that_vanishes_meanwhile_stops_no_run(tmp_path):
    for n, name in enumerate(NAMES[1:]):
        saved(tmp_path, name, 10 + n)
    gone = tmp_path / "checkpoints" / NAMES[4] / "last" / "110"
    gone.symlink_to(tmp_path / "gone")  # As one that is removed once it was listed.
    assert len(folders(tmp_path).remove_others()) == 2


def test_a_run_that_restarts_knows_what_changed_since_the_last_one(tmp_path, capsys):
    whose = {"config": "1", "data": "2", "code": "3"}
    own = folders(tmp_path, identity={**whose, "data": "5", "config": "0"})
    own.note_what_changed()
    assert capsys.readouterr().err == ""
    older, newer = (folders(tmp_path, name, whose) for name in NAMES[1:3])
    for other in (older, newer):
        with other.locked():
            pass
    saved(tmp_path, NAMES[3], 50)  # Of a version that said nothing.
    for time, other in ((10, older), (20, newer)):
        os.utime(other.checkpoints, (time, time))
    own.note_what_changed()
    note = f"config and data changed since the checkpoints in {newer.checkpoints}"
    assert note in capsys.readouterr().err


def test_a_run_that_still_goes_on_is_neither_removed_nor_joined(tmp_path):
    for name, time in zip(NAMES[1:], (40, 30, 20, 10), strict=True):
        saved(tmp_path, name, time)
    other = folders(tmp_path, NAMES[4])
    script = (
        "import sys; from pathlib import Path; from recsys.training.run_folders import RunFolders\n"
        "f = RunFolders({}, Path(sys.argv[1]), Path())\n"
        "with f.locked():\n    print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, other.checkpoints],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(RecsysError, match="R380"), other.locked():
            pass
        os.utime(other.checkpoints, (1, 1))
        assert folders(tmp_path).remove_others() == [tmp_path / "checkpoints" / NAMES[3]]
        holder.kill()
    with other.locked():  # The kernel freed it.
        pass
