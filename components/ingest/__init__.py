"""What Beam's workers run: from raw files to the interaction store.

Nothing here imports TFX or TensorFlow, so a worker process starts in a second. From
front to back:

    unique.py         files → typed rows without duplicates, dead letters, counts
    interactions.py   → examples, split by time
    spans.py          the same night by night, of a window of spans: what is new is read by
                      span_look.py and span_read.py, made into segments by segment_make.py,
                      and handed on by span_output.py
    vocabularies.py   → counts of ids, and vocabularies that grow
    store.py          → the interaction store, shard by shard
    shuffle.py        how rows get from worker to worker
"""
