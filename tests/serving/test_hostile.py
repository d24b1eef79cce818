"""`recsys serve` and clients that want to stop it: for everybody, or by names of their own."""

import json
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("fastapi", reason="needs the extra `serve`")

import requesting
from serving import FakeRecommender, Running

_PREDICT = "/v1/models/m:predict"


@pytest.fixture(scope="module")
def server():
    with Running(versions=(1,), kind=FakeRecommender) as running:
        yield running


NAMES = st.one_of(
    st.sampled_from(
        ["user_id", "history", "exclude_seen", "exclude_ids", "country", "item_id", "only_"]
    ),
    st.sampled_from(["self", "signature", "inputs", "k", "name", "cls", "None", "class"]),
    st.sampled_from(["", " ", "__init__", "__class__", "__dict__", "{0}", "%s", "../x", "\0"]),
    st.sampled_from(["x" * 1000, "x" * 1001, "x" * 100_000, "\u202e", "ｋ", "only_genre\0"]),
    st.text(max_size=20).filter(lambda name: name != "only_genre"),
)


def assert_refused(answer):
    assert 400 <= answer.status_code < 500, answer.text
    assert set(answer.json()) == {"error"}


@given(NAMES, st.sampled_from([[], [""], ["noir"]]))
@example("user_id", [])
@example("self", [])
def test_no_name_of_a_filter_is_more_than_a_name(server, name, tokens):
    wish = {"user": "u1", "k": 4, "only": {name: tokens}}
    assert_refused(requesting.post(f"{server.url}/api/recommend", json=wish))
    answer = requesting.get(f"{server.url}/api/tokens", params={"filter": name})
    assert_refused(answer)


@given(NAMES.filter(lambda name: name != "k"))
def test_no_name_of_a_field_or_an_input_is_more_than_a_name(server, name):
    assert_refused(requesting.post(f"{server.url}/api/recommend", json={name: [], "k": "4"}))
    for body in (
        {"signature_name": name, "instances": [{}]},
        {"signature_name": "recommend", "instances": [{name: [""]}]},
        {"signature_name": "recommend", "inputs": {name: [""]}},
        {name: 1},
    ):
        assert_refused(server.predict(body))


_DEEP = b"[" * 100_000


@pytest.mark.parametrize("path", [_PREDICT, "/v1/models/m:rank", "/api/recommend"])
@pytest.mark.parametrize(
    "body",
    [
        _DEEP,
        b'{"a":' * 100_000,
        b'{"instances": ' + _DEEP + b"]" * 100_000 + b"}",
        b'{"instances": [' + b"[]," * 1_000_000 + b"[]]}",
        json.dumps({f"a{n}": 1 for n in range(600_000)}).encode(),
        b'{"k": ' + b"9" * 10_000 + b"}",
        b'{"k": 1, "k": NaN}',
        b'{"version": 1e999}',
        b'{"user": "\xff"}',
        b'{"user": "\\ud800"}',
        b'{"\\ud800": ["\\udfff"]}',
        b'{"only": {"\\ud800": []}}',
        b"\xef\xbb\xbf{}",
        '{"k": 1}'.encode("utf-16"),
    ],
    ids=lambda body: ascii(body)[:20],
)
def test_json_that_is_none_or_too_much_is_refused_with_a_sentence(server, path, body):
    assert_refused(requesting.post(server.url + path, content=body))


@pytest.mark.slow
@pytest.mark.parametrize("n", [5, pytest.param(100, marks=pytest.mark.faults)])
def test_every_answer_is_in_the_openapi_page(tmp_path, n):
    pytest.importorskip("schemathesis", reason="needs the development group")
    # The page can't say what a signature takes: valid requests may be refused.
    options = ["--exclude-checks", "positive_data_acceptance", "--max-examples", str(n)]
    with Running(versions=(1, 2), kind=FakeRecommender) as running:
        page = f"{running.url}/openapi.json"
        finished = subprocess.run(
            [sys.executable, "-m", "schemathesis.cli", "run", *options, "--seed", "1", page],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=False,
        )
    assert finished.returncode == 0, finished.stdout[-4000:] + finished.stderr[-1000:]
