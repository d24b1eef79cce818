"""The summary of a run, its line, and the webhook over real sockets."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from commands import run_main
from webhook_server import Server

from recsys.config import NotifyConfig
from recsys.report.runs import RunRecord
from recsys.runs import summary
from recsys.runs.summary import one_line, read_summaries, run_summary

SECRET = "hunter2-T0KEN"  # noqa: S105
ROOT = Path("/srv/run")
RESULT = {
    "name": "movies",
    "started": 1_770_080_400.0,
    "seconds": 97.4,
    "state": "finished",
    "rejected": {
        "interactions": {"read": 100_836, "rejected": 12, "duplicates": 3},
        "items": {"read": 9_743, "rejected": 1, "duplicates": 0},
    },
    "confidence": 0.95,
    "deciding": "recall@10",
    "metrics": {"recall@10": 0.12, "mrr": 0.04},
    "intervals": {"recall@10": [0.1, 0.14]},
    "baselines": {"popularity": {"recall@10": 0.08}},
    "blessed_model": {"recall@10": 0.118},
    "against": {"blessed_model": {"relative": 0.017, "interval": [-0.01, 0.04]}},
    "blessed": True,
    "sentence": "recall@10 is 0.12; blessed",
    "pushed": "/srv/run/serving/movies/12",
    "report": "artifacts/Reporter/report/23/report.html",
    "carried": {"base": "x"},
    "spans": [
        {"name": "2026-02-02", "state": "read", "new": True, "late": False},
        {"name": "2026-01-30", "state": "read", "new": True, "late": True},
        {"name": "2026-01-31", "state": "set_aside", "new": False, "late": False},
    ],
    "anomalies": [{"of": "interactions", "kind": "schema", "text": "rating: none"}],
}
FAILED = {"name": "movies", "error": "[R241] Too many.", "step": "DataGate", "state": "failed"}


def test_a_summary_has_every_key_and_says_what_happened():
    night = run_summary("2026-02-03T01", RESULT, ROOT)
    assert night["format"] == 1
    assert (night["state"], night["version"], night["started"]) == (
        "blessed",
        12,
        "2026-02-03T01:00:00Z",
    )
    assert night["metrics"]["recall@10"] == {"value": 0.12, "interval": (0.1, 0.14)}
    assert night["metrics"]["mrr"]["interval"] is None
    assert night["against"]["blessed_model"]["relative"] == 0.017
    assert night["against"]["popularity"] == {"value": 0.08, "relative": None, "interval": None}
    data = night["data"]
    assert (data["read"], data["rejected"], data["duplicates"]) == (110_579, 13, 3)
    assert data["spans"] == {
        "new": ["2026-02-02", "2026-01-30"],
        "late": ["2026-01-30"],
        "empty": [],
        "set_aside": ["2026-01-31"],
        "missing": [],
    }
    assert night["report"] == "/srv/run/artifacts/Reporter/report/23/report.html"
    failed = run_summary(None, FAILED, ROOT)
    assert failed.keys() == night.keys()
    assert failed["state"] == "failed"
    json.dumps([night, failed], allow_nan=False)


def test_the_line_holds_what_matters_and_is_one():
    line = one_line(run_summary("1", RESULT, ROOT))
    assert line == (
        "✓ movies: blessed; recall@10 0.120 (0.100 … 0.140), +1.7 % on the last blessed;"
        " version 12 is served; 110,579 rows read, 13 rejected; late: 2026-01-30;"
        " set aside: 2026-01-31; 1 anomaly; 1 min 37 s"
    )
    bad = run_summary("1", {**RESULT, "warning": "Worse than popularity: recall@10 is 0.1"}, ROOT)
    assert bad["warning"] == "Worse than popularity: recall@10 is 0.1"
    assert "on the last blessed; worse than popularity; version 12" in one_line(bad)
    assert one_line(run_summary("1", {**FAILED, "error": "a\nb" * 999}, ROOT)).count("\n") == 0
    assert len(one_line(run_summary("1", {**FAILED, "error": "x" * 9999}, ROOT))) == 500
    assert one_line({}) == "? recsys: no verdict"


def test_runs_are_read_newest_first_with_those_that_did_not_end(tmp_path):
    for day in range(1, 5):
        record = RunRecord(tmp_path / "runs" / f"2026-02-{day:02}")
        record.start("movies", ["A", "B"], 1e9)
        record.step("A", "ran", "first run", 2.5, 0.0)
        if day != 3:
            record.end({**RESULT, "deciding": f"day {day}"})
    (tmp_path / "runs/2026-02-02/run.json").write_text("{")
    nights, damaged = read_summaries(tmp_path)
    assert [night["run"][-2:] for night in nights] == ["04", "03", "01"]
    assert [night["state"] for night in nights] == ["blessed", "interrupted", "blessed"]
    assert (nights[1]["step"], nights[1]["seconds"]) == ("B", 2.5)
    assert [record for record, _ in damaged] == ["runs/2026-02-02"]
    assert [night["run"][-2:] for night in read_summaries(tmp_path, 1)[0]] == ["04"]


def test_the_runs_are_listed_for_people_and_for_programs(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    RunRecord(tmp_path / "runs/2026-02-01").start("movies", ["A"], 1e9)
    RunRecord(tmp_path / "runs/2026-02-01").end(RESULT)
    RunRecord(tmp_path / "runs/2026-02-02").start("movies", ["A"], 1e9)
    RunRecord(tmp_path / "runs/2026-02-02").end({**FAILED, "seconds": 1.0})
    (tmp_path / "runs/2026-02-03").mkdir()
    assert run_main("runs", "--root", str(tmp_path)) == 0
    text = capsys.readouterr().out
    for words in ("R241", "0.100 … 0.140", "+1.7", "110,579", "2026-01-31", "runs/2026-02-03"):
        assert words in text
    assert text.index("failed in") < text.index("blessed, version 12")
    assert run_main("runs", "--root", str(tmp_path), "-n", "1", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [night["state"] for night in told["runs"]] == ["failed"]
    assert run_main("runs", "--root", str(tmp_path / "none")) == 0
    assert "There are no records of runs" in capsys.readouterr().out


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Waits of milliseconds, and no proxy."""
    monkeypatch.setattr(summary, "_FIRST_WAIT_S", 0.01)
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def told(
    monkeypatch: pytest.MonkeyPatch, url: str, night: dict[str, Any] | None = None, **config: Any
) -> dict[str, Any]:
    monkeypatch.setenv("NIGHT_HOOK", url)
    settings = {"webhook_env": "NIGHT_HOOK", "timeout_s": 10.0, "total_s": 30.0, **config}
    found = summary.send_summary(night or run_summary("1", RESULT, ROOT), NotifyConfig(**settings))
    assert found is not None
    assert SECRET not in json.dumps(found)
    return found


def test_a_webhook_gets_the_summary_with_its_text(monkeypatch):
    with Server(200) as server:
        found = told(monkeypatch, f"http://ada:{SECRET}@{server.host}/{SECRET}?key={SECRET}")
    assert found == {"host": server.host, "sent": True, "attempts": 1, "error": None}
    (body,) = server.bodies
    assert body["text"].startswith("✓ movies: blessed")
    assert (body["format"], body["run"]) == (1, "1")
    assert server.headers[0]["Authorization"].startswith("Basic ")
    assert server.headers[0]["Host"] == server.host


def test_a_webhook_that_fails_at_first_is_asked_again(monkeypatch):
    with Server(500, lambda handler: None, 429, 204) as server:
        found = told(monkeypatch, f"http://{server.host}/", attempts=5)
    assert (found["sent"], found["attempts"]) == (True, 4)
    assert len({json.dumps(body) for body in server.bodies}) == 1


@pytest.mark.parametrize(
    ("status", "n_asked", "error"),
    [(500, 3, "status 500"), (404, 1, "status 404"), (302, 1, "status 302: redirects")],
)
def test_a_webhook_that_goes_on_failing_is_given_up(monkeypatch, status, n_asked, error):
    def redirect(handler: Any) -> None:
        handler.send_response(status)
        handler.send_header("Location", f"http://127.0.0.1:{other.port}/")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    with Server(200) as other, Server(redirect) as server:
        found = told(monkeypatch, f"http://{server.host}/{SECRET}", attempts=3)
    assert found["sent"] is False
    assert found["error"].startswith(error)
    assert (found["attempts"], len(server.bodies)) == (n_asked, n_asked)
    assert other.bodies == []


def after(value: str) -> Any:
    def busy(handler: Any) -> None:
        handler.send_response(503)
        handler.send_header("Retry-After", value)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return busy


def test_the_retry_after_of_a_webhook_is_respected(monkeypatch):
    began = time.monotonic()
    with Server(after("1"), 200) as server:
        found = told(monkeypatch, f"http://{server.host}/")
    assert (found["sent"], found["attempts"]) == (True, 2)
    assert time.monotonic() - began >= 1.0


def test_a_webhook_that_asks_for_longer_than_there_is_is_given_up(monkeypatch):
    began = time.monotonic()
    with Server(after("3600"), 200) as server:
        found = told(monkeypatch, f"http://{server.host}/", total_s=600.0)
    assert (found["sent"], found["attempts"], found["error"]) == (False, 1, "status 503")
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    "value", ["", "soon", "-5", "1.5", "Wed, 21 Oct 2015 07:28:00 GMT", "Wed, 99 Oct 2015", "²"]
)
def test_an_invalid_retry_after_is_ignored(monkeypatch, value):
    with Server(after(value), 200) as server:
        assert told(monkeypatch, f"http://{server.host}/")["sent"] is True


gone = threading.Event()
"""Set once no client waits for an answer."""


def drip(handler: Any) -> None:
    """Sends a header of an endless answer, a byte at a time, faster than any time limit."""
    for _ in range(1000):
        handler.wfile.write(b"H")
        handler.wfile.flush()
        if gone.wait(0.02):
            return


def hang(handler: Any) -> None:
    gone.wait(20)


@pytest.mark.parametrize("behave", [drip, hang])
def test_a_webhook_that_never_ends_its_answer_is_left(monkeypatch, behave):
    gone.clear()
    started = time.monotonic()
    with Server(behave) as server:
        found = told(monkeypatch, f"http://{server.host}/", attempts=2, timeout_s=0.4)
        took = time.monotonic() - started
        gone.set()
    assert (found["sent"], found["attempts"]) == (False, 2)
    assert took < 10


def test_all_attempts_together_have_a_limit(monkeypatch):
    monkeypatch.setattr(summary, "_FIRST_WAIT_S", 1.0)
    started = time.monotonic()
    with Server(500) as server:
        found = told(monkeypatch, f"http://{server.host}/", attempts=10, total_s=0.4)
    assert time.monotonic() - started < 10
    assert found["sent"] is False
    assert found["attempts"] < 10


def test_a_huge_answer_is_not_read_to_its_end(monkeypatch):
    sent = [0]

    def flood(handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(1 << 40))
        handler.end_headers()
        for _ in range(2000):
            sent[0] += handler.wfile.write(b"x" * (1 << 16))

    with Server(flood) as server:
        found = told(monkeypatch, f"http://{server.host}/")
    assert found["sent"] is True
    assert sent[0] < 50 << 20


def test_a_missing_server_is_reported_without_the_url(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    found = told(monkeypatch, f"http://127.0.0.1:{port}/{SECRET}", attempts=2)
    assert (found["sent"], found["attempts"]) == (False, 2)
    assert found["error"] == "Connection refused"


def test_a_server_without_a_valid_certificate_receives_nothing(monkeypatch):
    with Server(200) as server:  # Speaks no TLS at all.
        found = told(monkeypatch, f"https://127.0.0.1:{server.port}/{SECRET}", attempts=1)
    assert found["sent"] is False
    assert server.bodies == []


@pytest.mark.parametrize(
    "url",
    ["", "ftp://h/x", "file:///etc/passwd", f"https://:{SECRET}@", f"http://h:{SECRET}/", "h/x"],
)
def test_what_is_no_address_of_the_web_is_never_opened(monkeypatch, url):
    found = told(monkeypatch, url)
    assert (found["sent"], found["host"], found["attempts"]) == (False, None, 0)
    assert "NIGHT_HOOK" in found["error"]


def test_no_webhook_is_called_by_default(monkeypatch):
    night = run_summary("1", RESULT, ROOT)
    assert summary.send_summary(night, NotifyConfig()) is None
    assert summary.send_summary(night, NotifyConfig(webhook_env="X", on=("failed",))) is None
    monkeypatch.delenv("NIGHT_HOOK", raising=False)
    found = summary.send_summary(night, NotifyConfig(webhook_env="NIGHT_HOOK"))
    assert found is not None
    assert found["sent"] is False
