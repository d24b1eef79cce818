"""The two-tower training step that `benchmarks.embedding_step` measures, for us and for peers.

The workload, the same for all: a user table and an item table of `rows` × `dim`; a batch
of one id a side, Zipf(1.05) over all rows; a tower Dense 128 relu → Dense 64 on each side,
trained by Adagrad; the mean in-batch softmax over batch × batch logits. `case` says what
is measured, `ids` draws the ids, `children` starts a process of one case; in that process
`clock` times the steps. Only NumPy is needed to be measured: peers bring the rest.
"""
