"""The parts of `python -m benchmarks.fuzz`.

- `case`: an input, what may be wrong with how it was taken, and where it is kept.
- `files`, `checks`, `configs`, `requests`: how inputs are made, and what must come of them.
- `worker`: a process that takes one input after the other.
- `watch`: what starts it, and sees it crash, hang or grow.
"""
