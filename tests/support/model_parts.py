"""Model folders as several processes write them, with large tables in parts, or with others."""

import json
import zlib

import numpy as np

from recsys.models.summary import summary_text

PARTS = 3


def listed(path):
    """Returns what a manifest has of a file."""
    content = path.read_bytes()
    return {"size": len(content), "crc32": f"{zlib.crc32(content):08x}"}


def change(folder, variable, changed):
    """Gives a variable of a model folder, by the end of its path, other numbers."""
    summary = json.loads((folder / "model.json").read_text())
    paths = [entry["path"].endswith(variable) for entry in summary["variables"]]
    number = paths.index(True)
    file = folder / "weights" / f"{number}.npy"
    np.save(file, changed(np.load(file)))
    summary["variables"][number]["whole"] = {file.name: listed(file)}
    (folder / "model.json").write_text(summary_text(summary))


def divide(folder, summary="model.json", part="weights"):
    """Divides all variables of many rows of a folder into parts, and returns their numbers."""
    described = json.loads((folder / summary).read_text())
    numbers = []
    for number, entry in enumerate(described["variables"]):
        if len(entry["shape"]) < 2 or entry["shape"][0] < PARTS:
            continue
        file = folder / part / f"{number}.npy"
        array = np.load(file)
        file.unlink()
        file.with_suffix("").mkdir()
        ends = [len(array) * k // PARTS for k in range(PARTS + 1)]
        del entry["whole"]
        entry["parts"] = {}
        for k in range(PARTS):
            name = f"{number}/shard-{k}-of-{PARTS}.npy"
            np.save(folder / part / name, array[ends[k] : ends[k + 1]])
            entry["parts"][name] = listed(folder / part / name)
        numbers.append(number)
    text = summary_text(described) if summary == "model.json" else json.dumps(described)
    (folder / summary).write_text(text)
    return numbers


def divide_all(folder):
    """Divides the weights and the state of a model folder, and seals it anew."""
    numbers = divide(folder)
    assert divide(folder, "training_state/state.json", "training_state")
    manifest = folder / "training_state" / "manifest.json"
    sealed = json.loads(manifest.read_text())["files"]
    parts = {"model.json", "weights", "vocabulary", "catalogue", "user_features", "training_state"}
    assert {name.split("/")[0] for name in sealed} <= parts
    files = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name.split("/")[0] in parts and path != manifest:
            files[name] = listed(path)
    manifest.write_text(json.dumps({"files": files}))
    return numbers
