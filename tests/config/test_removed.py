"""Removed keys and options are refused with their replacement."""

import pytest
from commands import run_main
from places import ROOT
from pydantic import ValidationError

from recsys import stages
from recsys.config import TrainConfig, ValidationConfig, removed
from recsys.config.load import load_config
from recsys.errors import ConfigError, UsageError
from recsys.registry.file_option import read_in_folder
from recsys.stages import evaluate as evaluation
from recsys.stages import train

CONFIG = ROOT / "configs" / "movielens_small.yaml"


def nested(path: str) -> str:
    """Returns an override that sets a path of the table, such as `a.b`, `a.b=name` or `a.*.b`."""
    path, _, value = path.partition("=")
    first, *others = path.split(".")
    value = value or "1"
    for key in reversed(others):
        value = f"[{value}]" if key == "*" else f"{{{key}: {value}}}"
    return f"{first}={value}"


@pytest.mark.parametrize("path", removed.CONFIG)
def test_a_removed_key_says_what_to_write(path):
    with pytest.raises(ConfigError) as caught:
        load_config(CONFIG, [nested(path)])
    assert caught.value.code == "R105"
    assert removed.CONFIG[path] in caught.value.cure


@pytest.mark.parametrize(
    "shape", ["{shape: cube}", "{shape: {type: cube}}", "{shape: {kind: cube}}"]
)
def test_a_removed_value_is_found_as_a_name_and_as_a_type(monkeypatch, shape):
    monkeypatch.setattr(removed, "CONFIG", {"parts.*.shape=cube": "Write shape: ball."})
    with pytest.raises(ConfigError, match="Write shape: ball"):
        load_config(CONFIG, [f"parts=[{shape}]"])


def test_a_model_folder_of_the_version_before_may_have_removed_keys(tmp_path):
    train_config = TrainConfig(validation=ValidationConfig(share=0.2))
    fields = train_config.model_dump(mode="json")
    fields["validation"]["popularity"] = None
    assert read_in_folder(TrainConfig, fields, tmp_path) == train_config
    fields["validation"]["share"] = "all"
    with pytest.raises(ValidationError, match="share"):
        read_in_folder(TrainConfig, fields, tmp_path)


@pytest.mark.parametrize("words", stages.COMMAND_LINE)
def test_a_removed_command_or_option_says_what_to_use(words, capsys):
    assert run_main(*words.split(), "x") == 2
    assert "R271" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "main"), [("train", train.main), ("evaluate", evaluation.main)]
)
def test_the_stages_refuse_removed_options_too(monkeypatch, command, main):
    monkeypatch.setattr(stages, "COMMAND_LINE", {f"{command} --old": "Use --new."})
    with pytest.raises(UsageError, match="Use --new"):
        main(["--old=1"])


def test_the_page_has_every_removed_key():
    page = (ROOT / "docs" / "removed.md").read_text()
    names = [path.partition("=")[0].rpartition(".")[2] for path in removed.CONFIG]
    names += [words.rpartition(" ")[2] for words in stages.COMMAND_LINE]
    assert [name for name in names if name not in page] == []
