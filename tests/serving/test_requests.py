"""JSON of TensorFlow Serving's REST API, as its documentation and its parser have it."""

import contextlib
import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from recsys.savedmodel.signatures import SignatureInput
from recsys.serving.predictor import check_rows
from recsys.serving.requests import HttpError, Limits
from recsys.serving.tf_serving import read_request, write_answer

LIMITS = Limits()
SIGNATURES = {
    "serving_default": {"examples": SignatureInput("DT_STRING", (-1,))},
    "recommend": {
        "user_id": SignatureInput("DT_STRING", (-1,)),
        "history": SignatureInput("DT_STRING", (-1, -1)),
        "exclude_seen": SignatureInput("DT_BOOL", (-1,)),
    },
    "half_plus_two": {"x": SignatureInput("DT_FLOAT", (-1,))},
    "deep": {"x": SignatureInput("DT_FLOAT", (-1, -1, -1))},
}


def read(signature, **body):
    text = json.dumps({"signature_name": signature, **body})
    return read_request(text.encode(), SIGNATURES, LIMITS)


def refused(body, signatures=SIGNATURES, limits=LIMITS):
    body = body if isinstance(body, bytes) else body.encode()
    with pytest.raises(HttpError) as caught:
        check_rows(read_request(body, signatures, limits).inputs, limits)
    return caught.value


QUERIES = {
    "user_id": ["foo", "bar"],
    "history": [["a", "b"], ["c", ""]],
    "exclude_seen": [True, False],
}


@pytest.mark.parametrize("form", ["rows", "columns"])
def test_a_request_reads_alike_by_row_and_by_column(form):
    rows = [dict(zip(QUERIES, row, strict=True)) for row in zip(*QUERIES.values(), strict=True)]
    body = {"instances": rows} if form == "rows" else {"inputs": QUERIES}
    question = read("recommend", **body)
    answer = question.write({"y": np.zeros(1, np.float32)})
    assert answer == {"rows": b'{"predictions": [0.0]}', "columns": b'{"outputs": [0.0]}'}[form]
    assert question.inputs["user_id"].tolist() == [b"foo", b"bar"]
    assert question.inputs["history"].tolist() == [[b"a", b"b"], [b"c", b""]]
    assert question.inputs["exclude_seen"].dtype == np.bool_


def test_one_input_needs_no_name():
    assert read("half_plus_two", instances=[1.0, 2, 5.0]).inputs["x"].tolist() == [1, 2, 5]
    assert read("half_plus_two", inputs=[1.0]).inputs["x"].tolist() == [1]
    assert read("deep", instances=[[[1, 2]], [[3, 4]]]).inputs["x"].shape == (2, 1, 2)


def test_the_default_signature_is_asked_where_none_or_an_empty_one_is_named():
    for name in ({}, {"signature_name": ""}, {"signature_name": "serving_default"}):
        body = json.dumps({**name, "instances": [{"b64": "AAEC"}, "abc", {"b64": "/w"}]})
        question = read_request(body.encode(), SIGNATURES, LIMITS)
        assert question.signature == "serving_default"
        assert question.inputs["examples"].tolist() == [b"\x00\x01\x02", b"abc", b"\xff"]


def test_bytes_may_be_named_inputs_of_objects():
    question = read("serving_default", instances=[{"examples": {"b64": "YQ=="}}])
    assert question.inputs["examples"].tolist() == [b"a"]
    assert read("serving_default", inputs={"examples": ["a"]}).inputs["examples"].tolist() == [b"a"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "R551"),
        (b"{", "R551"),
        (b"[]", "R551"),
        ('{"instances": [{"k": 1, "k": 2}]}', "R551"),
        ("{}", "R552"),
        ('{"instances": ["a"], "inputs": ["a"]}', "R552"),
        ('{"instances": []}', "R552"),
        ('{"instances": "a"}', "R552"),
        ('{"instances": null}', "R552"),
        ('{"signature_name": "no", "instances": ["a"]}', "R553"),
        ('{"signature_name": 5, "instances": ["a"]}', "R553"),
        ('{"signature_name": ["x"], "inputs": {}}', "R553"),
        ('{"signature_name": "recommend", "instances": ["u1"]}', "R554"),
        ('{"signature_name": "recommend", "instances": [{"user_id": "u1"}]}', "R554"),
        ('{"signature_name": "recommend", "inputs": {"user_id": ["u1"]}}', "R554"),
        ('{"signature_name": "recommend", "inputs": ["u1"]}', "R554"),
        ('{"instances": [{"examples": "a", "more": 1}]}', "R554"),
        ('{"instances": [5]}', "R555"),
        ('{"instances": ["a", null]}', "R555"),
        ('{"instances": [true]}', "R555"),
        ('{"instances": ["\\ud800"]}', "R555"),
        ('{"instances": [{"b64": "?"}]}', "R555"),
        ('{"signature_name": "half_plus_two", "instances": ["1"]}', "R555"),
        ('{"signature_name": "half_plus_two", "instances": [1e39]}', "R555"),
        ('{"signature_name": "half_plus_two", "instances": [true]}', "R555"),
        ('{"instances": [["a"]]}', "R556"),
        ('{"inputs": "a"}', "R556"),
        ('{"inputs": [[]]}', "R556"),
        ('{"signature_name": "deep", "inputs": [[[1, 2]], [[3]]]}', "R556"),
        ('{"signature_name": "deep", "inputs": [[[1, 2]], 3]}', "R556"),
    ],
)
def test_what_is_wrong_is_said_before_tensorflow_sees_it(body, code):
    refusal = refused(body)
    assert (refusal.status, refusal.code) == (400, code)


def test_columns_of_different_numbers_of_rows_are_refused():
    columns = {"user_id": ["a", "b"], "history": [["x"]], "exclude_seen": [True]}
    refusal = refused(json.dumps({"signature_name": "recommend", "inputs": columns}))
    assert refusal.code == "R556"


@pytest.mark.parametrize("form", ["instances", "inputs"])
def test_too_many_rows_or_values_are_too_large(form):
    limits = dataclasses.replace(LIMITS, rows=3, values=8)
    assert read_request(json.dumps({form: ["a"] * 3}).encode(), SIGNATURES, limits)
    assert refused(json.dumps({form: ["a"] * 4}), limits=limits).status == 413
    body = {"signature_name": "deep", form: [[[1] * 9]]}
    assert refused(json.dumps(body), limits=limits).status == 413


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["b64", "user_id", "history", "exclude_seen", "examples", "x"]), inner
        )
    ),
    max_leaves=12,
)


@given(
    signature=st.sampled_from(sorted(SIGNATURES)),
    form=st.sampled_from(["instances", "inputs"]),
    value=JSON,
)
def test_any_json_is_read_or_refused(signature, form, value):
    body = json.dumps({"signature_name": signature, form: value}).encode()
    read_or_refused(body, signature)


def read_or_refused(body, signature):
    """Reads, or raises nothing but a refusal."""
    with contextlib.suppress(HttpError):
        question = read_request(body, SIGNATURES, LIMITS)
        for name, one in SIGNATURES[signature].items():
            assert question.inputs[name].ndim == len(one.shape)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(body):
    assert refused(body).status == 400


def write(outputs, is_by_row):
    return write_answer("recommend", outputs, by_row=is_by_row)


def test_one_output_has_no_name_and_several_have():
    one = {"y": np.array([3.5, 4, 5.5], np.float32)}
    assert write(one, is_by_row=True) == b'{"predictions": [3.5, 4.0, 5.5]}'
    assert write(one, is_by_row=False) == b'{"outputs": [3.5, 4.0, 5.5]}'
    two = {"ids": np.array([[b"a", b"b"]], object), "known": np.array([True])}
    expected = {"ids": ["a", "b"], "known": True}
    assert json.loads(write(two, is_by_row=True)) == {"predictions": [expected]}
    expected = {"ids": [["a", "b"]], "known": [True]}
    assert json.loads(write(two, is_by_row=False)) == {"outputs": expected}
    assert write({"y": np.array(2, np.int64)}, is_by_row=False) == b'{"outputs": 2}'


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0), (2, 0, 3), (2, 3, 0), (2, 3, 4), ()])
def test_text_of_any_shape_is_nested_as_numbers_are(shape):
    numbers = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    texts = np.vectorize(lambda n: str(n).encode(), otypes=[object])(numbers)
    found = json.loads(write({"y": texts}, is_by_row=False))["outputs"]
    assert found == np.vectorize(str, otypes=[object])(numbers).tolist()


def test_bytes_go_out_in_base64_by_name_or_where_they_are_no_text():
    outputs = {"image_bytes": np.array([b"a"], object), "name": np.array([b"\xff"], object)}
    found = json.loads(write(outputs, is_by_row=True))["predictions"]
    assert found == [{"image_bytes": {"b64": "YQ=="}, "name": {"b64": "/w=="}}]


def test_floats_are_the_shortest_text_that_reads_back():
    values = np.array([0.2, 1e-30, -3.4028235e38, np.nan, np.inf], np.float32)
    body = write({"y": values}, is_by_row=True)
    assert b"[0.2, 1e-30, -3.4028235e+38, NaN, Infinity]" in body
    np.testing.assert_array_equal(np.float32(json.loads(body)["predictions"]), values)
