"""What a rolling window of spans keeps from night to night, so that nothing is read twice.

From front to back:

    window.py     the spans of the window, and digests of what their files hold
    blocks.py     which days make a segment, and what its key is
    kept.py       folders named by what made them: committed whole, verified, swept
    span_rows.py  typed rows of one span, sorted by time
    events.py     positives of a segment, sorted by user, with ids of their own
    linked.py     what examples say of the segments that they are made of
    store.py      the interaction store over segments, written
    merged.py     the same, opened: one log in the order of a store written at once
    seen.py       which spans are new or late
    told.py       `spans.json`
    broken.py     the errors of broken spans
    scratch.py    room on disk that is gone with the process

`docs/data.md` says what users see of it, `docs/store.md` how the store is laid out.
"""
