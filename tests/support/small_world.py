"""Exports a model of the world that several files of tests share."""

import sys
from pathlib import Path
from unittest import mock

from checked_here import CheckedHere

from recsys.bundles.export import Sources, export
from recsys.config import ExportStage
from recsys.config.load import load_stage


def main(folder, model, out):
    stage = load_stage(folder / "export.json", ExportStage)
    with mock.patch("recsys.bundles.export.ParityProcess", CheckedHere):
        export(stage, Sources(model, folder / "data"), out)


main(*map(Path, sys.argv[1:]))
