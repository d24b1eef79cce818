"""`recsys doctor`: each check finds what is planted, and says how to fix it."""

import errno
import json
import os

import pytest
from commands import SMALL, run_main

from recsys.cli import check as check_module
from recsys.errors import BusyError
from recsys.storage import working_folder
from recsys.system import machine
from recsys.system.machine import Check

PY311, PY312 = (3, 11), (3, 12)


@pytest.mark.parametrize(
    ("python", "glibc", "state", "fix"),
    [
        ((3, 10), (2, 36), "fail", "Use Python 3.11 or 3.12"),
        ((3, 13), (2, 39), "fail", "Use Python 3.11 or 3.12"),
        (PY311, (2, 34), "ok", ""),
        (PY311, (2, 33), "fail", "Debian 12"),
        (PY312, (2, 36), "fail", "Python 3.11"),
        (PY312, (2, 39), "ok", ""),
        (PY311, (), "warn", "Linux"),
    ],
    ids=["3.10", "3.13", "oldest", "too-old", "debian-12-312", "ubuntu-24.04-312", "musl"],
)
def test_python_and_glibc_must_suit_the_wheels(python, glibc, state, fix):
    check = machine.check_python(python, glibc)
    assert check.state == state
    assert fix in check.fix


def test_a_package_without_kernels_says_what_to_install(monkeypatch):
    monkeypatch.setenv("RECSYS_NATIVE", "0")
    check = machine.check_kernels()
    assert check.state == "warn"
    assert "apt install gcc" in check.fix


@pytest.mark.parametrize(
    ("jaxlib", "flags", "state"),
    [
        ("0.10.2", "", "warn"),
        ("0.10.2", "--xla_backend_extra_options=-nvptx-allow-ftz-atomics", "ok"),
        ("0.11.0", "", "warn"),
        ("0.11.1", "", "ok"),
    ],
)
def test_versions_that_sum_equal_ids_slowly_on_a_gpu_are_a_warning(jaxlib, flags, state):
    assert machine.check_gpu_sums(jaxlib, flags).state == state


@pytest.mark.parametrize(("gib", "state"), [(3.9, "warn"), (4.0, "ok"), (64.0, "ok")])
def test_little_memory_is_a_warning(gib, state):
    assert machine.check_machine(2, int(gib * 2**30)).state == state
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < machine.available_memory() <= total


def test_a_missing_package_is_named_with_its_fix():
    check = machine.check_packages("x", ("numpy", "no-such-distribution"), "fail")
    expected = ("x", "fail", "no-such-distribution is not installed", "uv sync --all-extras")
    assert check == expected


def test_a_package_of_another_version_than_the_pinned_one_is_named():
    check = machine.check_packages("x", ("numpy",), "warn", {"numpy": "1.0", "absent": "2.0"})
    assert check.state == "fail"
    assert check.message.startswith("numpy is 2.")
    assert check.message.endswith(", not 1.0")


def config_file(folder, root="runs"):
    path = folder / "small.yaml"
    path.write_text(SMALL.replace("root: runs", f"root: {root}").replace("e.csv", "e*.csv"))
    (folder / "events.csv").touch()
    (folder / "i.csv").touch()
    return path


def checks_of(path):
    return {check.name: check for check in check_module.check_config(path)}


def test_a_good_config_passes_and_writes_nothing(tmp_path):
    checks = checks_of(config_file(tmp_path))
    assert {name: check.state for name, check in checks.items()} == {
        "config": "ok",
        "data": "ok",
        "root": "ok",
    }
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("root", ["events.csv/runs", "/proc/recsys", "x" * 300])
def test_a_root_that_cannot_be_written_fails(tmp_path, root):
    check = checks_of(config_file(tmp_path, root))["root"]
    assert check.state == "fail"
    assert "--set root=DIR" in check.fix


def test_a_root_in_use_is_no_failure(tmp_path, monkeypatch):
    def busy(_):
        raise BusyError("R601", "One run at a time.", "Wait.", "host, process 7")

    monkeypatch.setattr(working_folder, "check_home", busy)
    check = checks_of(config_file(tmp_path))["root"]
    assert (check.state, "process 7" in check.message) == ("ok", True)


def test_a_full_disk_is_no_matter_of_rights(tmp_path, monkeypatch):
    def full(**_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(machine.tempfile, "TemporaryFile", full)
    assert machine.check_root(tmp_path).fix.startswith("Free disk space")


def test_a_folder_without_a_config_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert {name: check.state for name, check in checks_of(None).items()} == {"config": "warn"}


def test_a_broken_config_fails_with_its_own_sentence(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text("name: [")
    [check] = check_module.check_config(path)
    assert check.state == "fail"
    assert check.message.startswith("[R102] ")


def test_jax_reports_its_devices(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=3")
    check = machine.check_jax()
    assert check.state == "ok", check
    assert check.message.startswith("3 cpu")


@pytest.mark.parametrize(
    ("program", "words", "fix"),
    [
        ("raise ImportError('planted')", "exit code 1: ImportError: planted", "uv sync"),
        ("raise RuntimeError('no device')", "RuntimeError: no device", "See the full output"),
        ("import os; os._exit(3)", "exit code 3: no message", "See the full output"),
        ("import os; os.kill(os.getpid(), 9)", "unknown: the system killed", "memory"),
        ("import time; time.sleep(30)", "timed out after 2 s (load ", "less busy"),
    ],
    ids=["import", "device", "exit", "killed", "slow"],
)
def test_a_probe_that_fails_says_why(monkeypatch, tmp_path, program, words, fix):
    # A probe leaves the current folder out of its path, and so ours has to be named.
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(machine, "_TIMEOUT_S", 2.0)
    (tmp_path / "jax.py").write_text(program)
    check = machine.check_jax()
    assert check.state == "fail"
    assert words in check.message
    assert fix in check.fix


def test_the_exit_code_follows_the_checks_and_json_has_each(monkeypatch, tmp_path, capsys):
    for name in ("check_jax", "check_kernels", "check_tfx"):  # They have tests of their own.
        monkeypatch.setattr(machine, name, lambda name=name: Check(name, "ok", "planted"))
    path = str(config_file(tmp_path))
    assert run_main("doctor", path, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["ok"] is True
    assert [check["name"] for check in result["checks"]] == [
        "config", "data", "root", "python", "machine", "core packages", "extra pipeline",
        "check_jax", "check_kernels", "check_tfx",
    ]  # fmt: skip
    (tmp_path / "i.csv").unlink()
    assert run_main("doctor", path) == 1
    [row] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("data ")]
    assert row.split()[1] == "fail"
    assert row.rstrip().endswith("Correct")
