"""The hosts of a training, as options, a file and schedulers name them."""

import argparse
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.errors import UsageError
from recsys.training.cluster import Cluster, add_host_options, cluster_of


def parsed(*words):
    parser = argparse.ArgumentParser()
    add_host_options(parser)
    return cluster_of(parser.parse_args([str(word) for word in words]))


@pytest.fixture(autouse=True)
def _no_scheduler(monkeypatch):
    for name in ("RECSYS_COORDINATOR", "RECSYS_PROCESSES", "RECSYS_PROCESS", "RECSYS_LOCAL_DEVICE"):
        monkeypatch.delenv(name, raising=False)


def test_without_options_there_is_one_host():
    assert parsed() is None


def test_a_process_is_placed_by_options():
    words = ["--coordinator", "a:8476", "--num-processes", 3, "--process-id", 2, "--wait", 7]
    assert parsed(*words) == Cluster("process", "a", 8476, 3, 2, 1, None, 7.0)


def test_a_process_is_placed_by_the_environment(monkeypatch):
    for name, value in {"COORDINATOR": "[fd00::1]:80", "PROCESSES": "2", "PROCESS": "0"}.items():
        monkeypatch.setenv(f"RECSYS_{name}", value)
    monkeypatch.setenv("RECSYS_LOCAL_DEVICE", "1")
    assert parsed() == Cluster("process", "fd00::1", 80, 2, 0, 1, "1", 300.0)


@pytest.mark.parametrize(
    "words",
    [
        ["--coordinator", "a"],
        ["--coordinator", "a:0"],
        ["--coordinator", "a:x", "--num-processes", "2", "--process-id", "0"],
        ["--coordinator", ":80", "--num-processes", "2", "--process-id", "0"],
        ["--coordinator", "a:80"],
        ["--coordinator", "a:80", "--num-processes", "2"],
        ["--coordinator", "a:80", "--num-processes", "2", "--process-id", "2"],
        ["--coordinator", "a:80", "--num-processes", "0", "--process-id", "0"],
        ["--coordinator", "auto"],
    ],
)
def test_what_is_missing_or_wrong_is_one_sentence(words):
    with pytest.raises(UsageError, match="R376"):
        parsed(*words)


def test_slurm_says_which_process_this_is(monkeypatch):
    step = {
        "SLURM_JOB_ID": "4242",
        "SLURM_STEP_NODELIST": "node[3-4]",
        "SLURM_NTASKS": "2",
        "SLURM_PROCID": "1",
        "SLURM_LOCALID": "0",
    }
    for name, value in step.items():
        monkeypatch.setenv(name, value)
    cluster = parsed("--coordinator", "auto")
    assert (cluster.host, cluster.n_members, cluster.member) == ("node3", 2, 1)
    assert cluster.devices == "0"
    assert 61440 <= cluster.port < 65536


def test_open_mpi_says_which_process_this_is(monkeypatch):
    step = {
        "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    }
    for name, value in step.items():
        monkeypatch.setenv(name, value)
    cluster = parsed("--coordinator", "auto")
    assert (cluster.host, cluster.n_members, cluster.member) == ("10.96.0.1", 4, 3)
    assert cluster.devices == "1"


def test_a_file_names_the_hosts(tmp_path):
    file = tmp_path / "hosts.txt"
    file.write_text("# ours\n\n a:8476 processes=4 \n[fd00::2]:8476\n")
    assert parsed("--hosts", file, "--host", 0) == Cluster("host", "a", 8476, 2, 0, 4)
    assert parsed("--hosts", file, "--host", 1) == Cluster("host", "a", 8476, 2, 1, 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# none\n",
        "a\n",
        "a:0\n",
        "a:70000\n",
        "a:80 processes=0\n",
        "a:80 b:80\n",
        "a:80\na:80\n",
        "a:80 devices=2\n",
        "a:80 processes=-1\n",
        "a:80 processes=1000\n",
    ],
)
def test_a_line_that_names_no_host_is_refused(text, tmp_path):
    file = tmp_path / "hosts.txt"
    file.write_text(text)
    with pytest.raises(UsageError, match="R392"):
        parsed("--hosts", file, "--host", 0)


@pytest.mark.parametrize(
    "words", [["--host", 0], ["--hosts", "FILE"], ["--hosts", "NONE", "--host", 0]]
)
def test_a_file_and_a_line_of_it_go_together(words, tmp_path):
    (tmp_path / "FILE").write_text("a:80\n")
    words = [tmp_path / word if word in {"FILE", "NONE"} else word for word in words]
    with pytest.raises(UsageError, match="R392"):
        parsed(*words)


@pytest.mark.parametrize("host", [-1, 1])
def test_a_line_that_is_not_there_is_refused(host, tmp_path):
    (tmp_path / "hosts").write_text("a:80\n")
    with pytest.raises(UsageError, match="R392"):
        parsed("--hosts", tmp_path / "hosts", f"--host={host}")


def test_processes_of_one_machine_are_for_one_machine():
    words = ["--coordinator", "a:80", "--num-processes", 2, "--process-id", 0, "--processes", 2]
    with pytest.raises(UsageError, match="R392"):
        parsed(*words)


@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_whatever_a_file_holds_is_hosts_or_one_sentence(tmp_path_factory, text):
    file = tmp_path_factory.getbasetemp() / "any-hosts"
    file.write_text(text, newline="")
    with contextlib.suppress(UsageError):
        cluster = parsed("--hosts", file, "--host", 0)
        assert cluster.host
        assert 0 < cluster.port < 65536
