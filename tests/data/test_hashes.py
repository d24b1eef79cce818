"""Fingerprint64 of many texts equals FarmHash's, and so TensorFlow's buckets."""

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from recsys.data.hashes import fingerprints, hash_buckets

farmhash = pytest.importorskip("farmhash")


def test_texts_of_every_length_have_farmhashs_fingerprint():
    rng = np.random.default_rng(0)
    texts = ["".join(map(chr, rng.integers(32, 0x2FF, n // 2))) for n in range(700)]
    texts += ["x" * n for n in range(300)]
    expected = [farmhash.fingerprint64(text) for text in texts]
    assert fingerprints(pa.array(texts)).tolist() == expected
    order = rng.permutation(len(texts))
    mixed = fingerprints(pa.array([texts[i] for i in order], pa.large_string()))
    assert mixed.tolist() == [expected[i] for i in order]


def test_a_long_text_among_many_has_farmhashs_fingerprint():
    texts = ["é" * n for n in (*range(60, 160), *[700] * 40, 30_000, 300_000, 300_001)]
    expected = [farmhash.fingerprint64(text) for text in texts]
    assert fingerprints(pa.array(texts)).tolist() == expected


@given(st.lists(st.text(max_size=90) | st.none()), st.integers(0, 5))
def test_texts_of_any_content_have_farmhashs_fingerprint(texts, start):
    part = pa.array(texts, pa.string()).slice(start)
    expected = [farmhash.fingerprint64(text or "") for text in texts[start:]]
    assert fingerprints(part).tolist() == expected


@pytest.mark.pipeline
def test_buckets_are_those_of_tensorflow():
    tf = pytest.importorskip("tensorflow")
    ids = [f"user {n}" for n in range(300)] + ["", "007", "é", "🙂" * 20, "a\x00b", "x" * 500]
    for n in (1, 7, 1000, 2**31 - 1):
        expected = tf.strings.to_hash_bucket_fast(ids, n).numpy().tolist()
        assert hash_buckets(pa.array(ids), n).tolist() == expected
