"""The folder of a pair: a retriever's model folder, with the ranker's model folder in it.

ranker/             the ranker's model folder
ranker/pair.json    `RankerConfig`, with its sha256

Code that knows no pairs reads the folder as the retriever's.
"""

from __future__ import annotations

import functools
from pathlib import Path

from recsys.models.summary import damaged, read_summary, summary_text
from recsys.pair.config import RankerConfig
from recsys.registry import load_plugins
from recsys.registry.file_option import IN_FOLDER, read_in_folder
from recsys.system.files import commit_text, undamaged

RANKER = "ranker"
PAIR = "pair.json"


def ranker_of(folder: Path) -> Path | None:
    """Returns the ranker's folder of a pair, or None if a folder is no pair's."""
    ranker = folder / RANKER
    return ranker if (ranker / PAIR).is_file() else None


def write_pair(ranker: Path, config: RankerConfig) -> None:
    """Makes a ranker's folder the second stage of a pair.

    Args:
        ranker: Model folder of the ranker, with copies of the files of its config.
        config: The pair's config.
    """
    fields = {"format": 1, "ranker": config.model_dump(mode="json", context=IN_FOLDER)}
    commit_text(summary_text(fields), ranker / PAIR)


def read_pair(ranker: Path) -> RankerConfig:
    """Returns the config of a pair.

    Raises:
        RecsysError: The file is missing or damaged (R310).
    """
    with undamaged(functools.partial(damaged, ranker / PAIR)):
        # They may register the model that the config names.
        load_plugins(read_summary(ranker)["stage"]["plugins"])
        return read_in_folder(RankerConfig, read_summary(ranker, PAIR)["ranker"], ranker)
