"""`recsys forget`: removes users from everything that the runs under a root have written."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from typer import Exit

from recsys.cli.options import ConfigOption, Json, Sets
from recsys.cli.show import emit
from recsys.cli.stages import call_pipeline
from recsys.errors import UsageError


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
