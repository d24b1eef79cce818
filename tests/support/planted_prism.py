"""`FOLDER CONFIG ARGS…`: ingests with a planted Prism in the home folder.

Prints whether Prism was requested, and how often the planted program ran.
"""

import json
import os
import platform
import sys
from pathlib import Path

import apache_beam

from recsys.config import DataConfig
from recsys.stages.ingest import ingest


def plant(home):
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    name = f"apache_beam-v{apache_beam.__version__}-prism-linux-{machine}.zip"
    program = home / ".apache_beam" / "cache" / "prism" / "bin" / name
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho ran >> {home}/ran\nexit 1\n")
    program.chmod(0o755)


if __name__ == "__main__":
    folder, config, args = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    plant(Path(os.environ["HOME"]))
    ingest(DataConfig.model_validate_json(config), folder, beam_args=args, progress=False)
    ran = Path(os.environ["HOME"], "ran")
    asked = "apache_beam.runners.portability.prism_runner" in sys.modules
    sys.stdout.write(json.dumps([asked, len(ran.read_text().split()) if ran.exists() else 0]))
