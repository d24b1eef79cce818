"""`recsys clean` and `forget`: remove old files of runs, and users, from a root."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Exit, Option

from recsys.cli.options import ConfigArgument, ConfigOption, Json, Sets
from recsys.cli.processes import call_pipeline
from recsys.cli.show import emit
from recsys.errors import UsageError


def clean(
    config: ConfigArgument = None,
    sets: Sets = None,
    apply: Annotated[bool, Option("--apply", help="Remove the files; default: a dry run.")] = False,
    as_json: Json = False,
) -> None:
    """List the files of past runs that `keep` in the config releases; remove them with --apply.

    Files that the next run, a rollback or the served model needs are always kept.
    """
    from recsys.config.load import load_config

    loaded = load_config(config, sets or [])
    root = str(loaded.root_folder)  # Before TFX is imported.
    done = call_pipeline("clean", ["--apply"] if apply else [], loaded)
    goes, stays = done["goes"], done["stays"]
    title = "Removed" if done["applied"] else "Would be removed; --apply removes them"
    hint = "Set `keep` in the config to remove old runs."
    people = {
        f"Kept in {root}": _files(root, _grouped(stays)),
        f"{title}, from {root}": _files(root, goes),
        "failed": [f"{file} could not be removed: {why}" for file, why in done["failed"]],
        "entries": len(goes),
        "freed": done["freed"],
        "kept": done["kept"],
        "": None if goes else f"Nothing to remove. {'' if loaded.keep.is_set else hint}",
    }
    emit({"root": root, **done}, as_json=as_json, people=people)
    raise Exit(1 if done["failed"] else 0)


def _grouped(things: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the kept files grouped by kind and reason, the largest group first."""
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for thing in things:
        group = groups.setdefault((thing["kind"], thing["why"]), {**thing, "size": 0, "n": 0})
        group["size"] += thing["size"]
        group["n"] += 1
    return sorted(groups.values(), key=lambda group: -group["size"])


def _files(root: str, things: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "kind": thing["kind"],
            "size": thing["size"],
            "path": thing["path"].removeprefix(f"{root}/"),
            "more": thing.get("n", 1) - 1 or None,
            "reason": thing["why"],
        }
        for thing in things
    ]


# --- users


def forget(
    users: list[str] | None = None,
    /,
    file: Path | None = None,
    config: ConfigOption = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Remove users from data, models, served versions, reports and logs; publish without them.

    Later runs leave them out: `data.forget` in the config names the file of their hashes. What
    items have learned from them stays until the next training.

    Args:
        users: User ids.
        file: Text file with more user ids, one per line.
    """
    from recsys.config.load import load_config

    ids, loaded = _ids(users or [], file), load_config(config, sets or [])
    with tempfile.TemporaryDirectory(prefix="recsys-forget-") as scratch:
        path = Path(scratch) / "users.json"
        path.write_text(json.dumps(ids), encoding="utf-8")
        done = call_pipeline("forget", ["--users", str(path)], loaded)
    failed = [f"{path} could not be removed: {why}" for path, why in done["failed"]]
    counts = {name: n for name, n in done.items() if n or name == "found"}
    people = {"users left out by later runs": len(ids), **counts, "failed": failed}
    emit({"root": loaded.root, **done}, as_json=as_json, people=people)
    raise Exit(1 if done["failed"] else 0)


def _ids(users: Sequence[str], file: Path | None) -> list[str]:
    """Returns the ids as the ingestion writes them, each once.

    Raises:
        UsageError: There is none, or the file can't be read (R934).
    """
    import pyarrow as pa

    from recsys.data.sources.values import to_ids

    try:
        lines = [] if file is None else file.read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise _refused(f"{str(file)!r}: {getattr(error, 'strerror', None) or error}") from None
    ids = to_ids(pa.array([*users, *lines], pa.string())).drop_null().unique().to_pylist()
    if not ids:
        raise _refused("none")
    return [str(id_) for id_ in ids]


def _refused(received: str) -> UsageError:
    rule = "recsys forget needs at least one user id."
    return UsageError("R934", rule, "Name users, or a UTF-8 file of one id per line.", received)
