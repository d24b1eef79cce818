"""`recsys freeze-schema`: the schemas of the last run, as files to commit."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from recsys.cli.run import require_pipeline
from recsys.cli.stages import stage_log
from recsys.config import canonical_json
from recsys.config_file import default_config_path, load_config
from recsys.system.process import run_stage, stage_environment

_MODULE = "pipelines.freeze_schemas"


def freeze_schema(
    path: Path | None, overrides: Sequence[str], out: Path, *, force: bool
) -> list[str]:
    """Writes the schemas of the last run into the folder `out`, and returns the files."""
    config = load_config(path or default_config_path(), overrides)
    require_pipeline()
    with tempfile.TemporaryDirectory(prefix="recsys-") as scratch:
        # JSON is YAML: the process reads the config with its overrides applied.
        resolved = Path(scratch) / "config.yaml"
        resolved.write_text(canonical_json(config), encoding="utf-8")
        words = ["--config", str(resolved), "--out", str(out.resolve())]
        words += ["--force"] if force else []
        with stage_log(_MODULE) as log:
            result = run_stage(_MODULE, words, stage_environment("jax"), log)
    return list(result["files"])
