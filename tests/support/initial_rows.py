"""Asserts that more rows, padding and stacking change no initial row of a table.

A program of its own, as the tests compile without the optimisation by which every program
rounds `shift + scale * u` once; only with it are the rows the same to the bit.
"""

import numpy as np

from recsys.embedding import FeatureConfig, ShardedEmbedding, TableConfig


def initial_tables(configs, **kwargs):
    features = {c.name: FeatureConfig(c.name, c, (None,), (None, c.embedding_dim)) for c in configs}
    layer = ShardedEmbedding(features, **kwargs)
    layer.build()
    return layer.get_embedding_tables()


names = ("a", "b", "c")
tables = [TableConfig(n, 20, 4, optimizer="sgd", placement="row") for n in names]
alone = {t.name: initial_tables([t])[t.name] for t in tables}
assert not np.array_equal(alone["a"], alone["b"])
for stacking in (None, "auto", [["c", "a"]]):
    together = initial_tables(tables, table_stacking=stacking)
    assert all(np.array_equal(together[n], alone[n]) for n in names)
padded = initial_tables(tables, n_shards=7)
assert all(np.array_equal(padded[n], alone[n]) for n in names)
longer = TableConfig("a", 9000, 4, optimizer="sgd", placement="row")
assert np.array_equal(initial_tables([longer])["a"][:20], alone["a"])
