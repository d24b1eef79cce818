"""From raw files to the data folder with Apache Beam; the only Beam code of `recsys`.

ingestion.py      interactions: reading, deduplication, split
read_rows.py      files or a query → rows in buckets with Beam; the local runner
spans.py          a rolling window, whose new spans are read
segments.py       → events of each user, by day
entity_rows.py    items and users, catalogue and features
store_writer.py   → vocabularies and the interaction store
"""

from recsys.system.lean_imports import lazy_contents

__all__, __getattr__, __dir__ = lazy_contents(__name__, {"recsys.stages.ingest": "ingest"})
