"""`python -m recsys.stages.export`: from a model folder to a serving bundle."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from recsys.bundles.config import ExportStage
from recsys.bundles.export import Sources, export
from recsys.config.load import load_stage
from recsys.system.files import read_json
from recsys.system.process import stage_main


def _main() -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="python -m recsys.stages.export", description=__doc__)
    for name in ("config", "model", "data", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--transform", type=Path, help="Transform's output for the items")
    parser.add_argument("--user-transform", type=Path, help="Transform's output for the users")
    parser.add_argument("--evaluation", type=Path)
    parser.add_argument("--data-origin", type=Path, help="origin of the raw data, for the manifest")
    options = vars(parser.parse_args())
    config, out, data_origin = (options.pop(name) for name in ("config", "out", "data_origin"))
    sources = Sources(**options, data_origin=data_origin and read_json(data_origin))
    return export(load_stage(config, ExportStage), sources, out.absolute())


if __name__ == "__main__":
    stage_main(_main)
