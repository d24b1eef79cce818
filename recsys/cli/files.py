"""`recsys init`, `synth`, `freeze-schema` and `schema`: files to start a project."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from recsys.cli.options import ConfigArgument, Count, Force, Json, MaybeCount, Out, Seed, Sets
from recsys.cli.show import emit
from recsys.errors import UsageError
from recsys.system.files import storage_error

_PACKAGE = Path(__file__).resolve().parent.parent
_NAME, _DATA = "movielens_small", "ml-latest-small"


def init(
    folder: Path = Path(),
    /,
    as_json: Json = False,
) -> None:
    """Write a config, recsys.yaml, and MovieLens sample data.

    Args:
        folder: Folder to write. Default: the current folder.
    """
    result = {"files": [str(path) for path in write_start(folder)]}
    then = "recsys run" if folder == Path() else f"cd {folder} && recsys run"
    emit(result, as_json=as_json, people={"wrote": result["files"], "next": then})


def write_start(folder: Path) -> list[Path]:
    """Writes a config, its JSON schema, and MovieLens `ml-latest-small` into a folder.

    Args:
        folder: The folder; created if it does not exist.

    Returns:
        The written files and folders.

    Raises:
        UsageError: One of them already exists (R111).
        OSError: The folder can't be written; nothing of what was written stays.
        RecsysError: The same, while data were copied (R603).
    """
    from recsys.config import Config
    from recsys.config.load import DEFAULT_NAME

    configs, data = _PACKAGE.parent / "configs", _PACKAGE.parent / "data"
    schemas = configs / "schemas"
    if (_PACKAGE / "starter").is_dir():  # Part of an installed wheel.
        configs = schemas = data = _PACKAGE / "starter"
    sources = {
        DEFAULT_NAME: configs / f"{_NAME}.yaml",
        f"data/{_DATA}": data / _DATA,
        f"schemas/{_NAME}": schemas / _NAME,
        "schema.json": None,
    }
    targets = {name: folder / name for name in sources}
    folders = {parent for target in targets.values() for parent in target.parents}
    taken = [str(target) for target in targets.values() if target.exists()]
    taken += [str(path) for path in folders if path.exists() and not path.is_dir()]
    if taken:
        rule = "recsys init overwrites nothing: the folder must not contain any of its files."
        raise UsageError("R111", rule, "Name another folder: recsys init FOLDER.", taken[0])
    # Paths of the shipped config that differ in the new folder.
    other = {f"configs/{_NAME}.yaml": DEFAULT_NAME, "../runs/": "runs/", "../data/": "data/"}
    folder.mkdir(parents=True, exist_ok=True)
    # Half of the data would be trained on without a word.
    with tempfile.TemporaryDirectory(prefix=".recsys-init-", dir=folder) as whole:
        for name, source in sources.items():
            target = Path(whole, name)
            target.parent.mkdir(exist_ok=True)
            if source is None:
                target.write_text(json.dumps(Config.model_json_schema(), indent=1) + "\n")
            elif source.is_dir():
                try:
                    shutil.copytree(source, target)
                except shutil.Error as error:  # Its text is a list of all files.
                    raise storage_error(OSError(error.args[0][0][-1]), folder) from None
            else:
                text = source.read_text()
                for old, new in other.items():
                    text = text.replace(old, new)
                target.write_text(text)
        for name, target in targets.items():
            target.parent.mkdir(exist_ok=True)
            Path(whole, name).rename(target)
    return list(targets.values())


def synth(
    users: Count,
    items: Count,
    out: Out,
    interactions: MaybeCount = None,
    impressions: MaybeCount = None,
    seed: Seed = 0,
) -> None:
    """Generate synthetic data of any size, with learnable structure, and a config for them.

    Args:
        users: Number of users.
        items: Number of items.
        interactions: Number of interactions, for retrieval.
        impressions: Number of impressions, for ranking: ten items each, with labels of known
            probability.
        seed: Random seed; the same seed gives the same data.
    """
    from recsys.synth import synthesize, synthesize_impressions

    if interactions is not None and impressions is None:
        emit(synthesize(out, users, items, interactions, seed), as_json=True)
    elif impressions is not None and interactions is None:
        emit(synthesize_impressions(out, users, items, impressions, seed), as_json=True)
    else:
        rule = "recsys synth needs exactly one of --interactions and --impressions."
        raise UsageError("R705", rule, "Name one: --interactions 100000.", None)


def freeze_schema(
    out: Out, config: ConfigArgument = None, sets: Sets = None, force: Force = False
) -> None:
    """Write the data schemas of the last run as files, to review, commit and validate against."""
    from recsys.cli.processes import call_pipeline
    from recsys.config.load import load_config

    words = ["--out", str(out.resolve()), *(["--force"] if force else [])]
    done = call_pipeline("freeze-schema", words, load_config(config, sets or []))
    print("\n".join(done["files"]))


def schema() -> None:
    """Print the JSON schema of the config, for editors."""
    from recsys.config import Config

    print(json.dumps(Config.model_json_schema(), indent=2))
