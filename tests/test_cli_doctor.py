"""`recsys doctor`: each check finds what is planted, and says how to mend it."""

import errno
import json
import os
import sys
from pathlib import Path

import pytest

from recsys import doctor
from recsys.cli import main
from recsys.doctor import EXACT_SET, WIDE_SET, Check

PY311, PY312 = (3, 11), (3, 12)


@pytest.mark.parametrize(
    ("python", "state"),
    [((3, 10), "fail"), (PY311, "ok"), (PY312, "ok"), ((3, 13), "fail")],
)
def test_python_must_be_of_a_supported_version(python, state):
    check = doctor.check_python(python)
    assert check.state == state
    assert bool(check.fix) == (state == "fail")


@pytest.mark.parametrize(
    ("glibc", "python", "state", "fix"),
    [
        ((2, 36), PY311, "ok", ""),
        ((2, 34), PY311, "ok", ""),
        ((2, 33), PY311, "fail", "Debian 12"),
        ((2, 36), PY312, "fail", "Python 3.11"),
        ((2, 39), PY312, "ok", ""),
        (None, PY311, "warn", "Linux"),
    ],
    ids=["debian-12", "oldest", "too-old", "debian-12-312", "ubuntu-24.04-312", "musl"],
)
def test_glibc_must_suit_the_wheels_of_this_python(glibc, python, state, fix):
    check = doctor.check_glibc(glibc, python)
    assert check.state == state
    assert fix in check.fix


@pytest.mark.parametrize(("python", "other"), [(PY311, EXACT_SET), (PY312, WIDE_SET)])
def test_the_set_of_tfx_packages_must_be_that_of_this_python(python, other):
    right = doctor.wheel_set(python).versions
    assert doctor.check_wheel_set(python, right).state == "ok"
    wrong = doctor.check_wheel_set(python, other.versions)
    assert wrong.state == "fail"
    assert "ml-metadata is" in wrong.message
    assert doctor.check_wheel_set(python, {}).state == "ok"


def test_a_package_without_kernels_says_what_to_install(monkeypatch):
    monkeypatch.setenv("RECSYS_NATIVE", "0")
    check = doctor.check_kernels()
    assert check.state == "warn"
    assert "slower" in check.message
    assert "apt install gcc" in check.fix


@pytest.mark.parametrize(("gib", "state"), [(3.9, "warn"), (4.0, "ok"), (64.0, "ok")])
def test_little_memory_is_a_warning(gib, state):
    assert doctor.check_memory(int(gib * 2**30)).state == state


def test_the_free_memory_is_that_of_this_machine():
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < doctor.available_memory() <= total


@pytest.mark.parametrize(
    ("value", "state"),
    [(None, "ok"), ("", "ok"), ("jax", "ok"), ("tensorflow", "warn"), ("theano", "fail")],
)
def test_keras_backend_must_not_stand_in_the_way(value, state):
    check = doctor.check_keras_backend(value)
    assert check.state == state
    assert check.fix == ("" if state == "ok" else "unset KERAS_BACKEND")


def test_a_missing_package_is_named_with_its_fix():
    check = doctor.check_packages("x", ("numpy", "nonesuch"), "fail", {"numpy": "2.0"})
    assert check == Check("x", "fail", "not installed: nonesuch", "uv sync --all-extras")


def test_installed_versions_leaves_out_what_is_not_there():
    versions = doctor.installed_versions(("numpy", "no-such-distribution"))
    assert list(versions) == ["numpy"]
    assert versions["numpy"].startswith("2.")


def config_file(folder, root="runs"):
    path = folder / "small.yaml"
    path.write_text(
        f"name: small\nroot: {root}\n"
        "data:\n"
        "  interactions: {files: e*.csv, columns: {user: u, item: i, timestamp: t}}\n"
        "  items: {files: i.csv, columns: {item: i, title: n}}\n"
    )
    (folder / "events.csv").touch()
    (folder / "i.csv").touch()
    return path


def states(path):
    return {check.name: check.state for check in doctor.check_config(path)}


def test_a_good_config_passes(tmp_path):
    path = config_file(tmp_path)
    assert states(path) == {"config": "ok", "data": "ok", "root": "ok", "disk": "ok"}
    assert not (tmp_path / "runs").exists()


def test_missing_data_fails(tmp_path):
    path = config_file(tmp_path)
    (tmp_path / "events.csv").unlink()
    assert states(path)["data"] == "fail"


def test_a_root_below_a_file_fails(tmp_path):
    path = config_file(tmp_path, root="events.csv/runs")
    check = next(check for check in doctor.check_config(path) if check.name == "root")
    assert check.state == "fail"
    assert "--set root=DIR" in check.fix


def test_a_root_that_the_system_keeps_read_only_fails(tmp_path):
    assert doctor.check_root(Path("/proc/recsys")).state == "fail"


def test_a_root_whose_name_the_system_refuses_fails(tmp_path):
    path = config_file(tmp_path, root="x" * 300)
    found = {check.name: check for check in doctor.check_config(path)}
    assert (found["root"].state, found["disk"].state) == ("fail", "warn")
    assert "File name too long" in found["root"].message


def test_a_full_disk_is_no_matter_of_rights(tmp_path, monkeypatch):
    def full(**_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", full)
    assert doctor.check_root(tmp_path).fix.startswith("Free some space")


def test_a_broken_config_fails_with_its_own_sentence(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text("name: [")
    [check] = doctor.check_config(path)
    assert check.state == "fail"
    assert check.message.startswith("[R102] ")


def test_jax_is_asked_for_its_devices():
    check = doctor.check_jax()
    assert check.state == "ok", check
    assert check.message.startswith("8 cpu")


@pytest.fixture
def broken_jax(monkeypatch, tmp_path):
    """Puts a `jax` before the real one, which does what a test says."""
    # A probe leaves the current folder out of its path, and so ours has to be named.
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return lambda program: (tmp_path / "jax.py").write_text(program)


@pytest.mark.parametrize(
    ("program", "words", "fix"),
    [
        ("raise ImportError('planted')", "exit code 1: ImportError: planted", "uv sync"),
        ("raise RuntimeError('no device')", "RuntimeError: no device", "Read all that it says"),
        ("import os; os._exit(3)", "exit code 3: no message", "Read all that it says"),
        ("import os; os.kill(os.getpid(), 9)", "not known: the system killed", "memory"),
    ],
    ids=["import", "device", "exit", "killed"],
)
def test_a_probe_that_fails_says_why_and_asks_for_an_installation_where_that_helps(
    broken_jax, program, words, fix
):
    broken_jax(program)
    check = doctor.check_jax()
    assert check.state == "fail"
    assert words in check.message
    assert fix in check.fix


def test_a_probe_that_takes_too_long_is_no_broken_installation(broken_jax, monkeypatch):
    broken_jax("import time; time.sleep(30)")
    monkeypatch.setattr(doctor, "_PROBE_TIMEOUT_S", 0.5)
    check = doctor.check_jax()
    assert check.state == "fail"
    assert check.message.startswith("not known: importing JAX took more than 0.5 s (load ")
    assert "less busy" in check.fix
    assert "sync" not in check.fix


@pytest.fixture
def quick(monkeypatch):
    """The slow checks, which have tests of their own, answer at once."""
    for name in ("check_jax", "check_kernels", "check_tfx"):
        monkeypatch.setattr(doctor, name, lambda name=name: Check(name, "ok", "planted"))


def run_doctor(*arguments):
    with pytest.raises(SystemExit) as caught:
        main(["doctor", *arguments])
    return caught.value.code or 0


def test_json_has_every_check_and_the_exit_code_follows_them(quick, tmp_path, capsys):
    path = config_file(tmp_path)
    assert run_doctor(str(path), "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["ok"] is True
    assert [check["name"] for check in result["checks"]] == [
        "python", "glibc", "cores", "memory", "core packages", "extra pipeline", "tfx set",
        "KERAS_BACKEND", "config", "data", "root", "disk", "check_jax", "check_kernels",
        "check_tfx",
    ]  # fmt: skip
    (tmp_path / "i.csv").unlink()
    assert run_doctor(str(path), "--json") == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_the_lines_show_what_is_wrong_and_the_fix(quick, tmp_path, capsys):
    path = config_file(tmp_path)
    (tmp_path / "i.csv").unlink()
    assert run_doctor(str(path)) == 1
    lines = capsys.readouterr().out.splitlines()
    wrong = next(index for index, line in enumerate(lines) if line.startswith("✗ data"))
    assert lines[wrong + 1].strip() == "fix: Mend the paths."
    assert lines[0].startswith(f"✓ python          Python {sys.version_info[0]}.")
