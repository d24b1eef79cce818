"""A plugin for processes that are killed while tasks read: CSV that waits for a file."""

import time
from pathlib import Path

import recsys
from recsys.data.sources.csv_source import CsvSource


@recsys.register_source("gated")
class GatedSource(CsvSource):
    """CSV whose rows are read once the file `folder/open` exists."""

    folder: str
    extensions = ()

    def read(self, piece):
        (Path(self.folder) / "reached").touch()
        while not (Path(self.folder) / "open").exists():
            time.sleep(0.05)
        yield from super().read(piece)
