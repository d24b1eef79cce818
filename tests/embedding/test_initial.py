"""Initial values have the right distribution, and depend only on table, row and column."""

import math
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from embedding_meshes import on_mesh
from places import SUPPORT

from recsys.embedding import FeatureConfig, ShardedEmbedding, TableConfig
from recsys.embedding import initial as initial_values
from recsys.embedding.initial import InPlace, initial_rows
from recsys.embedding.sharding import padded_rows
from recsys.errors import UsageError

initializers = keras.initializers


def initial_tables(configs, **kwargs):
    features = {c.name: FeatureConfig(c.name, c, (None,), (None, c.embedding_dim)) for c in configs}
    layer = ShardedEmbedding(features, **kwargs)
    layer.build()
    return layer.get_embedding_tables()


def initial(initializer, rows=4000, dim=16, placement="row", **kwargs):
    config = TableConfig("t", rows, dim, initializer=initializer, placement=placement)
    return initial_tables([config], **kwargs)["t"]


def initial_tables_sharding(config):
    feature = FeatureConfig("f", config, (None,), (None, config.embedding_dim))
    layer = ShardedEmbedding({"f": feature})
    layer.build()
    return layer.tables[0].sharding


@pytest.mark.parametrize(
    ("initializer", "mean", "deviation", "limit"),
    [
        (initializers.RandomUniform(-0.2, 0.6), 0.2, 0.8 / 12**0.5, 0.6),
        (initializers.RandomNormal(0.5, 0.25), 0.5, 0.25, np.inf),
        # A normal cut at two deviations has 0.87963 of its deviation left.
        (initializers.TruncatedNormal(0.5, 0.25), 0.5, 0.25 * 0.87963, 1.0),
        (initializers.VarianceScaling(2.0, "fan_out", "uniform"), 0, (2 / 16) ** 0.5, 0.6124),
        (initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal"), 0, 0.35355, np.inf),
        (initializers.VarianceScaling(1.0, "fan_out", "truncated_normal"), 0, 0.25, 0.5685),
        ("uniform", 0.0, 0.05 / 3**0.5, 0.05),
    ],
    ids=["uniform", "normal", "truncated", "scaled uniform", "scaled", "scaled cut", "by name"],
)
def test_each_family_has_its_mean_and_deviation(initializer, mean, deviation, limit):
    values = initial(initializer)
    n = values.size
    assert values.shape == (4000, 16)
    assert abs(values.mean() - mean) < 4 * deviation / n**0.5
    assert values.std() == pytest.approx(deviation, rel=0.01)
    assert np.abs(values).max() <= limit
    if np.isfinite(limit):
        assert np.abs(values).max() > 0.98 * limit
    # Rows and columns are as unlike each other as chance makes them.
    assert np.abs(np.corrcoef(values.T) - np.eye(16)).max() < 5 / 4000**0.5
    assert len(np.unique(values[:, 0])) > 3900


@pytest.mark.parametrize(
    "initializer", [initializers.Orthogonal(), initializers.Identity()], ids=type
)
def test_an_initializer_of_the_whole_table_is_refused(initializer):
    with pytest.raises(UsageError, match=r"R352.*depend on the table's size"):
        initial(initializer)


@pytest.mark.parametrize(
    ("mesh", "placement"), [("8", "row"), ("2×2", "column"), ("1×4", "replicated")]
)
def test_a_row_starts_alike_on_every_mesh(mesh, placement):
    config = TableConfig("t", 33, 16, initializer="normal", placement=placement)
    expected = initial("normal", rows=33)
    with on_mesh(mesh, [config]):
        found = initial_tables([config])["t"]
    assert np.array_equal(found, expected)


def test_a_device_makes_no_more_than_its_own_part():
    config = TableConfig("t", 80_000, 64, placement="row")
    with on_mesh("8", [config]):
        sharding = initial_tables_sharding(config)
        shape = (padded_rows(80_000, 8), 64)
        made = InPlace(
            lambda places: initial_rows("normal", places, 64, 0),
            lambda: (sharding, sharding.table_spec),
        )
        program = jax.jit(lambda: made(shape, "float32")).lower().compile()
    own = math.prod(shape) * 4 // 8
    memory = program.memory_analysis()
    assert memory.output_size_in_bytes == own
    assert memory.temp_size_in_bytes < own + 2**20


def test_more_rows_padding_and_stacking_change_no_row():
    script = SUPPORT / "initial_rows.py"
    flags = "--xla_force_host_platform_device_count=8"
    subprocess.run([sys.executable, script], env={**os.environ, "XLA_FLAGS": flags}, check=True)


def test_the_seed_of_layer_and_initializer_count():
    first, second = initial("normal"), initial("normal", seed=1)
    assert not np.array_equal(first, second)
    assert np.array_equal(first, initial("normal"))
    own = [initial(initializers.RandomNormal(seed=5), seed=n) for n in (0, 1)]
    assert np.array_equal(*own)
    assert not np.array_equal(own[0], initial(initializers.RandomNormal(seed=6)))


def test_no_bits_whatever_make_an_infinite_weight():
    """A table of 10⁷ rows draws 640 million times: what happens once in 2²⁴ times, happens."""
    ends = np.concatenate([np.arange(2**12), 2**32 - 1 - np.arange(2**12)]).astype(np.uint32)
    u = initial_values._between_0_and_1(jnp.asarray(ends))
    assert 0.0 < float(u.min()) < float(u.max()) < 1.0
    for draw in (initial_values._normal, initial_values._truncated_normal):
        assert np.isfinite(draw(u)).all()
    assert float(initial_values._normal(u).max()) == pytest.approx(5.3, abs=0.2)
