"""Ingests the data of a config, without a pipeline."""

import sys

from recsys.stages.ingest import ingest

config, out = sys.argv[2:]
ingest(config, out, progress=False)
