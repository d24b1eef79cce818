"""From raw files to the data folder, by Apache Beam; the only Beam code of `recsys`.

standalone.py     `ingest`: all steps without TFX
ingestion.py      interactions: read, without duplicates, split
entity_rows.py    items and users
vocabularies.py   ids → rows that stay
store_writer.py   → the interaction store
data_folder.py    → catalogue and features
"""

from typing import TYPE_CHECKING

from recsys.contents import lazy_contents

if TYPE_CHECKING:
    from recsys.data.ingest.standalone import ingest

__all__ = ["ingest"]
__getattr__, __dir__ = lazy_contents(__name__, __file__)
