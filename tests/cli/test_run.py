"""`recsys run`: what it shows of a child's events, and how it ends the child."""

import io
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from commands import run_main, small_config
from report_evaluation import evaluation
from waiting import wait_for

from recsys.cli import main
from recsys.cli import run as run_module
from recsys.cli.processes import RunView, follow, followed, new_log
from recsys.cli.run import for_people
from recsys.cli.terminal import Console
from recsys.errors import RecsysError
from recsys.report.runs import RunRecord
from recsys.system.events import note
from recsys.system.files import PREFIX
from recsys.system.parent import VARIABLE, child_command
from recsys.system.run_lock import run_lock

METRICS = {
    "recall@10": 0.12,
    "mrr": 0.05,
    "baselines": {"popularity": {"recall@10": 0.06, "mrr": 0.0}},
}
SUMMARY = {
    "blessed": True,
    "bundle": "/r/serving/m/1",
    "report": "/r/report.html",
    "index": "/r/index.html",
    "metrics": METRICS,
}
EVENTS = [
    {"kind": "run_started", "steps": ["InteractionGen", "Trainer"], "root": "/r", "name": "m"},
    {"kind": "step_started", "step": "InteractionGen"},
    {
        "kind": "step_finished",
        "step": "InteractionGen",
        "state": "cached",
        "reason": "cached: nothing that it reads has changed",
        "seconds": 0.04,
    },
    {"kind": "step_started", "step": "Trainer"},
    {"kind": "progress", "done": 3, "total": 12, "text": "loss 5.21 [1]"},
    {"kind": "of a later version"},
    {
        "kind": "step_finished",
        "step": "Trainer",
        "state": "ran",
        "reason": "its code changed",
        "seconds": 61.25,
    },
    {"kind": "finished", "summary": SUMMARY},
]


def shown(events, *, is_terminal=False):
    """Returns the view after `events` and all that it printed."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=is_terminal, width=100, highlight=False)
    with RunView(console) as view:
        for event in events:
            view.show(event)
    return view, screen.getvalue()


def test_without_a_terminal_a_run_is_plain_lines():
    view, text = shown(EVENTS)
    assert text.splitlines() == [
        "m: 2 steps into /r",
        "↺  1/2  InteractionGen      0.0 s  cached: nothing that it reads has changed",
        "✓  2/2  Trainer            61.2 s  ran: its code changed",
    ]
    assert view.summary == SUMMARY
    assert view.error is None


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_note_is_said_at_once(is_terminal):
    said = {"kind": "note", "text": "Goes on from step 40 [x]."}
    _, text = shown([*EVENTS[:5], said], is_terminal=is_terminal)
    assert "Trainer: Goes on from step 40 [x]." in text


def test_what_is_said_last_is_shown_and_a_reader_that_is_there_already_keeps_it(
    monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr("recsys.system.events.POLL_S", 60.0)  # Nothing is read before the end.
    with followed():
        note("The last word.")
        assert "The last word." in capsys.readouterr().err.splitlines()  # the log's
    assert "  The last word." in capsys.readouterr().err

    monkeypatch.setenv("RECSYS_EVENTS", str(tmp_path / "mine"))
    with followed():
        note("Another one.")
    assert "  Another one." not in capsys.readouterr().err
    assert json.loads((tmp_path / "mine").read_text())["text"] == "Another one."
    assert os.environ["RECSYS_EVENTS"] == str(tmp_path / "mine")


def test_a_failed_step_is_shown_and_the_first_error_is_kept():
    errors = [RecsysError("R301", "A.", "B."), RecsysError("R302", "C.", "D.")]
    failed = {"step": "DataGate", "state": "failed", "reason": "too many", "seconds": 1.0}
    view, text = shown(
        [
            *({"kind": "error", "step": "x", "error": error.to_json()} for error in errors),
            {"kind": "step_finished", **failed},
        ]
    )
    assert text == "✗  1/1  DataGate      1.0 s  failed\n"
    assert view.error is not None
    assert view.error.code == "R301"


def write_evaluation(folder, **changes):
    path = folder / "evaluation.json"
    path.write_text(json.dumps({**evaluation(), **changes}))
    return {**SUMMARY, "evaluation": str(path), "sharding": [], "not_pushed": None}


def test_a_blessed_model_that_was_not_pushed_is_not_said_to_be(tmp_path):
    summary = write_evaluation(tmp_path)
    assert for_people(summary)["model"] == "pushed"
    refused = {**summary, "bundle": None, "not_pushed": "[R513] It was rolled back."}
    assert for_people(refused)["model"] == "not pushed: [R513] It was rolled back."
    assert "served model stays" in for_people({**summary, "blessed": False})["model"]


def test_the_result_has_every_system_and_how_far_it_is(tmp_path):
    figures, differences, *_ = for_people(write_evaluation(tmp_path)).values()
    [row] = [row for row in figures if row["metric"] == "recall@10"]
    assert [*row.values()][1::2] == ["0.1270", "0.0843", "0.1186", "0.1247"]
    [row] = [row for row in differences if row["from"] == "item-kNN"]
    assert [text.replace("\N{NO-BREAK SPACE}", " ") for text in row.values()] == [
        "item-kNN", "+7.1 %", "+1.1 … +13.1 %", "better",
    ]  # fmt: skip


@pytest.fixture
def child(tmp_path, monkeypatch):
    """Returns a function that writes the module `planted_runner`, a real child process."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))

    def write(body):
        source = "import os, signal, sys, time\nfrom recsys.system.events import emit\n"
        (folder / "planted_runner.py").write_text(source + textwrap.dedent(body))

    return write


def test_events_that_find_no_room_name_their_file(monkeypatch):
    monkeypatch.setenv("RECSYS_EVENTS", "/dev/full")
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        note("a word")


def quiet():
    return RunView(Console(file=io.StringIO()))


def follow_child(tmp_path):
    log = new_log(tmp_path / "root")
    return log, lambda: follow(["planted_runner", "a", "b"], log, quiet())


def test_a_child_gives_its_summary_and_its_words_go_to_the_log(child, tmp_path):
    child("""
        print("to stdout", sys.argv[1:], flush=True)
        print("to stderr", file=sys.stderr)
        emit("finished", summary={"blessed": True})
    """)
    log, start = follow_child(tmp_path)
    assert start() == {"blessed": True}
    assert log.read_text() == "to stdout ['a', 'b']\nto stderr\n"


@pytest.mark.parametrize(
    ("body", "code"),
    [("os.kill(os.getpid(), signal.SIGKILL)", -9), ("raise ValueError", 1), ("", 0)],
    ids=["killed", "crashed", "silent"],
)
def test_a_child_without_a_result_is_an_error_that_names_the_log(child, tmp_path, body, code):
    child(body)
    log, start = follow_child(tmp_path)
    with pytest.raises(RecsysError) as caught:
        start()
    assert caught.value.code == "R903"
    assert f"exit code {code}'" in str(caught.value)
    assert str(log) in str(caught.value)


def test_a_module_in_the_current_folder_does_not_stand_in_for_ours(child, tmp_path, monkeypatch):
    child("import recsys; emit('finished', summary={'recsys': recsys.__file__})")
    here = tmp_path / "here"
    (here / "recsys").mkdir(parents=True)
    (here / "recsys" / "__init__.py").touch()
    (here / "random.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(here)
    _, start = follow_child(tmp_path)
    assert start() == {"recsys": str(Path(run_module.__file__).parents[1] / "__init__.py")}


def is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


GRANDCHILD = """
    import subprocess
    grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    with open(sys.argv[1], "w") as file:
        file.write(f"{os.getpid()} {grandchild.pid}\\n")
"""


def test_nothing_that_a_child_started_outlives_it(child, tmp_path):
    child(GRANDCHILD + "    emit('finished', summary={'blessed': True})")
    pids = tmp_path / "pids"
    follow(["planted_runner", str(pids)], new_log(tmp_path), quiet())
    wait_for(lambda: not any(is_alive(int(pid)) for pid in pids.read_text().split()))


@pytest.mark.parametrize(
    ("signum", "code", "is_stubborn"),
    [
        (signal.SIGINT, 130, False),
        (signal.SIGTERM, 143, False),
        (signal.SIGTERM, 143, True),
        (signal.SIGHUP, 129, False),
    ],
)
def test_a_signal_ends_the_run_with_every_process_of_it(child, tmp_path, signum, code, is_stubborn):
    stubborn = "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if is_stubborn else ""
    child("\n" + stubborn + GRANDCHILD + "    time.sleep(60)")
    pids = tmp_path / "pids"
    program = (
        "import io, signal, sys; from pathlib import Path; from rich.console import Console\n"
        # A shell's background job, such as a CI may be, ignores SIGINT and hands that on.
        f"signal.signal({int(signum)}, signal.SIG_DFL)\n"
        "from recsys.cli.processes import RunView, follow, new_log\n"
        "from recsys.system import parent; parent._GRACE_S = 0.3\n"
        "follow(['planted_runner', sys.argv[1]], new_log(Path(sys.argv[2])),"
        " RunView(Console(file=io.StringIO())))"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(pids), str(tmp_path)], stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: pids.exists() and pids.read_text().endswith("\n"))
    parent.send_signal(signum)
    _, talk = parent.communicate(timeout=20)
    assert parent.returncode == code
    assert talk.splitlines()[0] == (
        f"Stopped by {signum.name}; all processes of the run have ended."
    )
    assert "Traceback" not in talk
    wait_for(lambda: not any(is_alive(int(pid)) for pid in pids.read_text().split()))


def test_a_run_under_nohup_stays_deaf_to_a_hang_up(child, tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        child("os.kill(os.getppid(), signal.SIGHUP); emit('finished', summary={'blessed': True})")
        _, start = follow_child(tmp_path)
        assert start() == {"blessed": True}
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_runner_is_a_child_of_the_command_and_does_not_pass_the_parents_name_on(child, tmp_path):
    child(f"""
        summary = {{"parent": os.getppid(), "events": os.environ["RECSYS_EVENTS"],
                   "passed_on": {VARIABLE!r} in os.environ}}
        emit("finished", summary=summary)
    """)
    summary = follow_child(tmp_path)[1]()
    assert summary["parent"] == os.getpid()
    assert summary["passed_on"] is False
    assert f"/{PREFIX}" in summary["events"]


@pytest.mark.parametrize("module", ["pipelines.local_runner", "recsys.stages.train"])
def test_runner_and_stages_bind_themselves_before_all_else(module):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    ended = subprocess.run(
        child_command(module),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), VARIABLE: str(dead.pid)},
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL


def test_a_busy_root_is_no_failure_and_leaves_no_log(tmp_path, monkeypatch, capsys):
    root = tmp_path / "root"
    with run_lock(root):
        monkeypatch.setattr("recsys.system.run_lock.os.getpid", lambda: -1)  # As another process.
        with pytest.raises(SystemExit) as ended:
            main(["run", "--set", f"root={root}"])
    assert ended.value.code == 75
    assert "R601" in capsys.readouterr().err
    assert sorted(path.name for path in root.iterdir()) == ["run.lock"]


def test_a_child_that_could_not_write_its_error_is_reported(child, tmp_path, monkeypatch):
    child("sys.exit(1)")
    _, start = follow_child(tmp_path)
    with pytest.raises(RecsysError, match=r"R903"):
        start()
    monkeypatch.setattr("recsys.system.files.free_bytes", lambda _: 4096)
    with pytest.raises(RecsysError, match=r"R603.*No space left on device"):
        start()


@pytest.fixture
def small(tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "RUNNER", "planted_runner")
    return small_config(tmp_path)


@pytest.mark.parametrize("blessed", [True, False])
def test_json_is_one_line_of_stdout_with_the_figures(child, small, capfd, tmp_path, blessed):
    summary = {**write_evaluation(tmp_path), "blessed": blessed}
    child(f"emit('finished', summary={summary!r})")
    assert run_main("run", str(small), "--json") == 0
    [line] = capfd.readouterr().out.splitlines()
    result = json.loads(line)
    assert result.pop("seconds") >= 0
    assert result == {**SUMMARY, "blessed": blessed, "night": None}


def test_the_child_gets_the_config_and_the_overrides(child, small, capfd, tmp_path):
    summary = write_evaluation(tmp_path)
    child(f"emit('finished', summary={{**{summary!r}, 'bundle': str(sys.argv[1:])}})")
    overrides = ["--set", "train.epochs=3", "--set", f"root={tmp_path / 'other'}"]
    assert run_main("run", str(small), *overrides, "--json") == 0
    result = json.loads(capfd.readouterr().out)
    assert result["bundle"] == str([str(small), *overrides])
    assert len(list((tmp_path / "other" / "logs").glob("*Z.log"))) == 1


def test_a_failed_run_is_one_sentence_and_the_path_of_the_log(child, small, capfd, tmp_path):
    child("""
        from recsys.errors import RecsysError
        emit("error", step="DataGate", error=RecsysError("R320", "A.", "B.").to_json())
        sys.exit(1)
    """)
    assert run_main("run", str(small), "--json") == 1
    printed = capfd.readouterr()
    told = json.loads(printed.out)
    assert told["blessed"] is None
    assert (told["night"]["state"], told["night"]["error"]) == ("failed", "[R320] A. B.")
    log, sentence = printed.err.splitlines()
    assert log.startswith(f"Log: {tmp_path / 'runs' / 'logs'}")
    assert sentence == "[R320] A. B."


LATER = "2099-01-01T00-00-00.000000Z"
"""Id of a run that ended before the clock was set back."""


def record_later_run(root):
    record = RunRecord(root / "runs" / LATER)
    record.start("small", ["Trainer"], 4_070_908_800.0)
    record.end({"name": "small", "state": "finished", "started": 4_070_908_800.0, "blessed": True})


def test_under_a_clock_that_was_set_back_a_failed_run_reports_itself(child, small, capfd, tmp_path):
    root, own = tmp_path / "runs", "2001-01-01T00-00-00.000000Z"
    record_later_run(root)
    child(f"""
        from pathlib import Path
        from recsys.errors import RecsysError
        from recsys.report.runs import RunRecord
        emit("run_started", steps=["Trainer"], root={str(root)!r}, name="small", run={own!r})
        record = RunRecord(Path({str(root / "runs" / own)!r}))
        record.start("small", ["Trainer"], 978307200.0)
        error = RecsysError("R320", "A.", "B.")
        record.end({{"name": "small", "started": 978307200.0, "state": "failed",
                     "error": str(error), "step": "Trainer"}})
        emit("error", step="Trainer", error=error.to_json())
        sys.exit(1)
    """)
    assert run_main("run", str(small), "--json") == 1
    night = json.loads(capfd.readouterr().out)["night"]
    assert (night["run"], night["state"], night["step"]) == (own, "failed", "Trainer")
    assert night["started"] == "2001-01-01T00:00:00Z"


def test_a_root_that_cannot_be_a_folder_is_refused(small, capsys, tmp_path):
    (tmp_path / "runs").write_text("a file")
    assert run_main("run", str(small)) == 2
    assert capsys.readouterr().err.startswith("[R902] ")


def test_without_the_extra_the_sentence_says_how_to_get_it(small, capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run_main("run", str(small)) == 2
    assert "uv sync --all-extras" in capsys.readouterr().err
    assert not (small.parent / "runs").exists()
