"""Children import from the folders of their parent, and from the current folder only if it does."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from recsys.models.summary import read_summary, summary_text

_PARENT = """
import os, subprocess
from recsys.system.parent import as_parent, child_command
subprocess.run(child_command("beside"), env={**os.environ, **as_parent()}, check=True)
"""


def test_a_child_imports_the_modules_beside_its_parents_script(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
        (folder / "beside.py").write_text(f"print({folder.name!r})\n")
    (there / "script.py").write_text(_PARENT)
    printed = subprocess.run(
        [sys.executable, there / "script.py"], cwd=here, capture_output=True, text=True, check=True
    ).stdout
    assert printed == "there\n"


def test_the_installation_is_no_folder_of_a_child_s_own(tmp_path):
    code = "from recsys.system.parent import own_folders; print(*own_folders(), sep='\\n')"
    variables = {**os.environ, "PYTHONPATH": str(tmp_path)}
    printed = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path, env=variables, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    assert printed[0] == str(tmp_path)
    assert not [folder for folder in printed if Path(folder, "numpy").exists()]
    assert not [folder for folder in printed if Path(folder, "json").exists()]


@pytest.fixture
def planted(exported_world, tmp_path):
    """A model folder whose `model.json` names a plugin, and a file of its name."""
    model = shutil.copytree(exported_world.model, tmp_path / "model")
    summary = read_summary(model)
    summary["stage"]["plugins"] = ["planted"]
    (model / "model.json").write_text(summary_text(summary))
    (tmp_path / "planted.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    return tmp_path


@pytest.mark.slow
def test_an_evaluation_imports_a_model_s_plugins_from_the_named_folder_alone(
    exported_world, planted
):
    def evaluate(*more):
        words = ["evaluate", "model", "--data", exported_world.data, "--out", "out", *more]
        words += ["--set", "evaluate.baselines=[]", "--set", "bless.over={}"]
        return subprocess.run(
            [sys.executable, "-m", "recsys", *map(str, words)],
            cwd=planted, capture_output=True, text=True, check=False,
        )  # fmt: skip

    refused = evaluate()
    assert refused.returncode == 2
    assert "R108" in refused.stderr
    assert not (planted / "ran").exists()
    done = evaluate("--plugin-folder", ".")
    assert done.returncode == 0, done.stderr[-3000:]
    assert (planted / "ran").exists()
