"""The schedulers of the pipeline: units, cron line, DAG file."""

import ast
import json
import os
import shutil
import subprocess
import sys

import pytest
from places import ROOT

DEPLOY = ROOT / "deploy"
DAG_FILE = ROOT / "pipelines" / "airflow_dag.py"


def nightly(tmp_path, said, code, **environment):
    """Runs the script of cron with a command that says `said` and exits with `code`."""
    command = tmp_path / "recsys"
    command.write_text(f"#!/bin/sh\necho talk >&2\nprintf '%s' \"$ANSWER\"\nexit {code}\n")
    command.chmod(0o755)
    result = subprocess.run(
        [str(DEPLOY / "cron/nightly.sh")],
        env={
            "PATH": os.environ["PATH"],
            "ANSWER": said,
            "RECSYS_COMMAND": str(command),
            "RECSYS_CONFIG": "config.yaml",
            "RECSYS_LOG_DIR": str(tmp_path / "log"),
            **environment,
        },
        check=False,
        capture_output=True,
        text=True,
    )
    nights = (tmp_path / "log/nights.jsonl").read_text().splitlines()
    return result, [json.loads(night) for night in nights]


@pytest.mark.parametrize(
    ("code", "seen"), [(0, 0), (1, 1), (2, 2), (75, 0), (143, 143)], ids=lambda code: str(code)
)
def test_cron_reports_what_somebody_must_look_at(tmp_path, code, seen):
    result, nights = nightly(tmp_path, "", code)
    assert result.returncode == seen
    assert result.stdout == ""
    assert [night["exit"] for night in nights] == [code]
    assert nights[0]["summary"] is None


def test_cron_keeps_the_summary_and_the_talk_of_each_night(tmp_path):
    nightly(tmp_path, '{"blessed": true}', 0)
    _, nights = nightly(tmp_path, '{"blessed": false}', 0)
    assert [night["summary"] for night in nights] == [{"blessed": True}, {"blessed": False}]
    assert (tmp_path / "log/nightly.log").read_text() == "talk\n" * 2


def test_cron_gives_the_command_its_secrets(tmp_path):
    secrets = tmp_path / "environment"
    secrets.write_text("ANSWER='\"from the file\"'\n")
    _, nights = nightly(tmp_path, "", 0, RECSYS_ENVIRONMENT=str(secrets))
    assert nights[0]["summary"] == "from the file"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_units(tmp_path):
    for name in ("recsys.service", "recsys.timer"):
        text = (DEPLOY / "systemd" / name).read_text()
        # The unit names the place of an installation.
        text = text.replace("/opt/recsys/.venv/bin/recsys", "/bin/true")
        (tmp_path / name).write_text(text)
    units = [str(tmp_path / name) for name in ("recsys.service", "recsys.timer")]
    result = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_the_unit_treats_the_exit_codes_as_they_are_meant():
    lines = (DEPLOY / "systemd/recsys.service").read_text().splitlines()
    assert "SuccessExitStatus=75" in lines
    assert "RestartPreventExitStatus=2 75" in lines
    assert "Type=oneshot" in lines


def imported(tree):
    """Yields the top-level name of each module that a file imports, wherever it does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            yield (node.module or "").split(".")[0]


def test_airflow_reads_the_dag_without_our_packages():
    names = set(imported(ast.parse(DAG_FILE.read_text())))
    assert "airflow" in names
    assert names - {"airflow"} <= sys.stdlib_module_names


LOADED = """
import json, os, sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(sys.argv[1])
dag = bag.dags["recsys_nightly"]
task = dag.get_task("run_night")
print(json.dumps({
    "errors": {str(file): text for file, text in bag.import_errors.items()},
    "catchup": dag.catchup,
    "max_active_runs": dag.max_active_runs,
    "retries": task.retries,
    "backoff": task.retry_exponential_backoff,
    "timeout": task.execution_timeout.total_seconds(),
}))
"""

JUDGED = """
import json, os, signal, sys
sys.path.insert(0, sys.argv[1])
import airflow_dag
airflow_dag._setting = lambda name, default=None: os.environ[name.upper()]  # No database here.

class TimeoutOfAirflow(BaseException):
    pass

def time_out(*_):
    raise TimeoutOfAirflow

def outcome(script):
    command = os.environ["RECSYS_COMMAND"]
    with open(command, "w") as file:
        file.write("#!/bin/sh\\n" + script)
    os.chmod(command, 0o755)
    try:
        return airflow_dag.run_night()
    except BaseException as error:
        return [type(error).__name__, str(error)]

signal.signal(signal.SIGALRM, time_out)
said = [
    outcome("echo talk >&2; echo '{}'"),
    outcome("exit 2"),
    outcome("echo '{\\"night\\": {\\"error\\": \\"[R1] broken\\"}}'; exit 1"),
    outcome("kill -9 $$"),
    outcome("exit 0"),
]
signal.alarm(2)
said.append(outcome("trap 'echo asked > asked; exit' TERM; sleep 60 & wait"))
print(json.dumps(said))
"""


def in_airflow(script, folder, **environment):
    """Runs `script` with Airflow's Python, in a folder with the DAG file; returns its JSON."""
    shutil.copy(DAG_FILE, folder)
    result = subprocess.run(
        [
            *(str(ROOT / "uvw"), "run", "--no-project", "--python", "3.11"),
            *("--with", "apache-airflow==3.3.2", "python", "-c", script, str(folder)),
        ],
        env={
            **os.environ,
            "AIRFLOW_HOME": str(folder / "home"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            **environment,
        },
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.thorough
def test_airflow_loads_the_dag(tmp_path):
    assert in_airflow(LOADED, tmp_path, RECSYS_RETRIES="4") == {
        "errors": {},
        "catchup": False,
        "max_active_runs": 1,
        "retries": 4,
        "backoff": 2.0,
        "timeout": 72_000.0,
    }


@pytest.mark.thorough
def test_the_task_does_with_each_end_what_it_asks_for(tmp_path):
    command = str(tmp_path / "command")
    said = in_airflow(JUDGED, tmp_path, RECSYS_COMMAND=command, RECSYS_CONFIG="config.yaml")
    assert said == [
        {},
        ["AirflowFailException", "The config is wrong (exit code 2): the log says why."],
        ["AirflowException", "The run ended with exit code 1: [R1] broken"],
        ["AirflowException", "The run ended with exit code -9: the log says why."],
        ["AirflowException", "The command ended well without a summary."],
        ["TimeoutOfAirflow", ""],
    ]
    assert (tmp_path / "asked").read_text() == "asked\n"
