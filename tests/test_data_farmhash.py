"""Fingerprint64 of many texts equals that of FarmHash, and so TensorFlow's buckets."""

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from recsys.data.farmhash import fingerprints, hash_buckets, text_bounds

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
    texts = ["é" * n for n in (*range(60, 160), *[700] * 40, 30_000, 4_000_000, 4_000_001)]
    expected = [farmhash.fingerprint64(text) for text in texts]
    assert fingerprints(pa.array(texts)).tolist() == expected


@given(st.lists(st.text(max_size=90) | st.none()), st.integers(0, 5))
def test_texts_of_any_content_have_farmhashs_fingerprint(texts, start):
    part = pa.array(texts, pa.string()).slice(start)
    expected = [farmhash.fingerprint64(text or "") for text in texts[start:]]
    assert fingerprints(part).tolist() == expected


@pytest.mark.parametrize(
    ("text", "fingerprint"),
    [
        ("", 11160318154034397263),
        ("a", 12917804110809363939),
        ("abc", 2640714258260161385),
        ("user", 2238907118710571534),
        ("user 12", 9653529170004881107),
        ("user_123", 7982461457847314656),
        ("0123456789abcdef", 6105018409752412263),
        ("0123456789abcdefg", 12024047538191061578),
        ("x" * 32, 12901576723999808517),
        ("x" * 33, 12270365409943098935),
        ("x" * 64, 6916188127298655160),
        ("x" * 65, 4935023790501551929),
        ("é" * 100, 5454368170614913498),
    ],
)
def test_fingerprints_that_the_c_library_of_farmhash_gave(text, fingerprint):
    assert fingerprints(pa.array([text])).tolist() == [fingerprint]


@pytest.mark.pipeline
def test_buckets_are_those_of_tensorflow():
    tf = pytest.importorskip("tensorflow")
    ids = [f"user {n}" for n in range(300)] + ["", "007", "é", "🙂" * 20, "a\x00b", "x" * 500]
    for n in (1, 7, 1000, 2**31 - 1):
        expected = tf.strings.to_hash_bucket_fast(ids, n).numpy().tolist()
        assert hash_buckets(pa.array(ids), n).tolist() == expected


def test_bounds_of_a_slice_are_those_of_its_texts():
    texts = pa.array(["aa", "b", "", "cccc"]).slice(1, 2)
    offsets, data = text_bounds(texts)
    assert np.diff(offsets).tolist() == [1, 0]
    assert bytes(data[offsets[0] : offsets[1]]) == b"b"
    assert text_bounds(pa.array([], pa.string()))[0].tolist() == [0]
