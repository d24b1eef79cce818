"""From raw files to the data folder, in threads or with Beam; the only Beam code of `recsys`.

tasks.py          tasks in threads, or on a runner of Beam
read_rows.py      raw files → rows in buckets, shuffled by spills.py
ingestion.py      interactions: what is read, the cut, counts, dead letters
spans.py          the files of a rolling window; window.py: which are read, and their report
segments.py       rows → events of each user, by day
examples.py       the examples for TFX's statistics
entity_rows.py    items and users, catalogue and features
growth.py         ids of events → vocabularies, by bucket: buckets.py
store_writer.py   → the interaction store
"""

from recsys.system.lean_imports import lazy_contents

__all__, __getattr__, __dir__ = lazy_contents(__name__, {"recsys.stages.ingest": "ingest"})
