"""`recsys serve` and clients that want to stop it: for everybody, or by names of their own."""

import contextlib
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("fastapi", reason="needs the extra `serve`")

sys.path.append(str(Path(__file__).parent / "test_serve_scripts"))
import requesting
from serving import FakeRecommender, Running, wait_for

_MIB = 2**20
_PREDICT = "/v1/models/m:predict"


@contextlib.contextmanager
def alone(kind, **limits):
    """Yields a server in a process of its own, and its port."""
    script = Path(__file__).parent / "test_serve_scripts" / "alone.py"
    command = [sys.executable, str(script), kind, json.dumps(limits)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process, int(process.stdout.readline())
        process.stdin.close()


def filled(begin, part, end):
    """Returns 8 MiB of JSON."""
    return begin + part * ((8 * _MIB - len(begin) - len(end)) // len(part)) + end


def unknown_fields():
    return json.dumps({f"a{n}": 1 for n in range(600_000)}).encode()


@pytest.fixture(scope="module")
def people():
    with alone("people") as (_, port):
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize(
    "make",
    [
        lambda: filled(b'{"items": [', b"[],", b"[]]}"),
        lambda: filled(b'{"only": {"a": [', b"1,", b"1]}}"),
        unknown_fields,
        lambda: b'{"only": ' + unknown_fields() + b"}",
    ],
    ids=["lists", "numbers", "fields", "filters"],
)
def test_others_are_answered_while_a_request_of_8_mib_is_refused(people, make):
    is_over, waits = threading.Event(), []

    def ask_again_and_again():
        while not is_over.wait(0.02):
            started = time.monotonic()
            assert requesting.get(f"{people}/healthz", timeout=60).status_code == 200
            waits.append(time.monotonic() - started)

    other = threading.Thread(target=ask_again_and_again)
    other.start()
    wait_for(lambda: waits)
    kind = {"Content-Type": "application/json"}
    answer = requesting.post(f"{people}/api/recommend", content=make(), headers=kind, timeout=60)
    is_over.set()
    other.join()
    assert (answer.status_code in (413, 422), set(answer.json())) == (True, {"error"})
    assert len(waits) > 1


@pytest.mark.parametrize("part", [b"1,", b"[],", b'"a",', b'{"a":1},'])
def test_the_first_errors_of_a_wish_are_told_and_not_all(people, part):
    body = b'{"items": [' + part * (200_000 // len(part)) + b"1]}"
    kind = {"Content-Type": "application/json"}
    answer = requesting.post(f"{people}/api/recommend", content=body, headers=kind)
    assert (answer.status_code, "R569" in answer.json()["error"]) == (422, True)


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


@pytest.mark.parametrize("path", [_PREDICT, "/api/recommend"])
@pytest.mark.parametrize(
    "body",
    [
        _DEEP,
        b'{"a":' * 100_000,
        b'{"instances": ' + _DEEP + b"]" * 100_000 + b"}",
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
