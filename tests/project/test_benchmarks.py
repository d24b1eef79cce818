"""The benchmarks say what they promise; how fast it is, no test says."""

import json
import re
import subprocess
import sys
import tomllib

import numpy as np
import pytest
from places import ROOT

from benchmarks.embedding_step import OURS, Figures, Key, run_case
from benchmarks.measure import print_line, run, zipf_batches

OF_OURS = ("_case", "_ours", "_digest")  # they run in our own environment
PEERS = sorted(
    path for path in (ROOT / "benchmarks" / "peers").glob("*.py") if not path.stem.endswith(OF_OURS)
)


def test_a_line_has_the_promised_fields(capsys):
    print_line("bench", "case", [3.0, 1.0, 2.0], "ms", 12.34)
    line = json.loads(capsys.readouterr().out)
    expected = {
        "bench": "bench",
        "case": "case",
        "n_runs": 3,
        "median": 2.0,
        "min": 1.0,
        "max": 3.0,
        "unit": "ms",
        "peak_rss_mib": 12.3,
    }
    assert expected.items() <= line.items()


def test_a_list_takes_several_values_or_the_option_again(monkeypatch):
    nothing, called = [], []

    def main(rows: list[int] = nothing, peers: list[str] = nothing, fast: bool = False):
        assert (rows, peers, fast) == ([5, 7], ["a", "b"], True)
        called.append(main)

    line = "prog --rows 5 7 --peers=a --fast --peers b"
    monkeypatch.setattr(sys, "argv", line.split())
    with pytest.raises(SystemExit) as ended:
        run(main)
    assert (ended.value.code, len(called)) == (0, 1)


# --- ids


def test_ids_are_zipf_over_all_rows_and_each_side_has_its_own_hot_rows():
    ids = zipf_batches(50, 4096, 1000, seed=0)
    assert ids.shape == (50, 2, 4096)
    assert ids.dtype == np.int32
    assert ids.min() >= 0
    assert ids.max() < 1000
    expected = np.arange(1, 1001) ** -1.05
    expected /= expected.sum()
    counts = [np.bincount(ids[:, side].ravel(), minlength=1000) for side in range(2)]
    for of_side in counts:
        shares = np.sort(of_side)[::-1] / of_side.sum()
        np.testing.assert_allclose(shares[:5], expected[:5], rtol=0.05)
        np.testing.assert_allclose(shares[:100].sum(), expected[:100].sum(), rtol=0.02)
    hottest = [np.argsort(of_side)[::-1][:2] for of_side in counts]
    assert hottest[0][0] != hottest[1][0]
    assert all(abs(int(a) - int(b)) > 1 for a, b in hottest)


# --- lines


def figures_of(rounds):
    """Returns the figures of cases: times of steps [ms], peak [MiB] and state [bytes]."""
    figures = Figures()
    for key, step_ms, peak, state in rounds:
        measured = {"step_ms": step_ms, "peak_rss_mib": peak, "state_bytes": state}
        measured["versions"] = {}
        figures.rounds.setdefault(key, []).append(measured)
    return figures


def test_ratios_compare_rounds_that_were_measured_side_by_side(capsys):
    mib = 2**20
    rounds = [
        (Key("ours", 10), 2.0, 60, 10 * mib),
        (Key("ours", 10, 8), 3.0, 60, 10 * mib),
        (Key("torch", 10), 8.0, 1, mib),
        (Key("ours", 90), 2.2, 150, 100 * mib),
    ]
    # Whatever slows a round slows all of it.
    slowed = [(key, [ms * by], *memory) for by in (1, 2, 3) for key, ms, *memory in rounds]
    figures_of(slowed).print_all()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    ratios = {line["case"]: (line["min"], line["max"]) for line in lines if line["unit"] == "ratio"}
    assert ratios == {
        "torch/ours rows=10": (4.0, 4.0),
        "ours devices=8/1 rows=10": (1.5, 1.5),
        "ours rows=90/10": (1.1, 1.1),
        "ours peak/state rows=90-10": (1.0, 1.0),
    }


# --- whole runs, tiny


def lines_of(name, *words):
    """Returns the lines of a benchmark by their cases, in order."""
    command = [sys.executable, "-m", f"benchmarks.{name}", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return {line["case"]: line for line in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("path", PEERS, ids=lambda path: path.stem)
def test_a_peer_declares_an_environment_of_its_own(path):
    text = path.read_text("utf-8")
    (block,) = re.findall(r"^# /// script\n(.*?)^# ///$", text, re.DOTALL | re.MULTILINE)
    header = tomllib.loads(re.sub(r"^# ?", "", block, flags=re.MULTILINE))
    assert header["dependencies"]
    assert "3.11" in header["requires-python"]
    compile(text, path, "exec")


@pytest.mark.bench
@pytest.mark.parametrize("devices", [1, 4])
def test_our_step_is_measured_in_a_process_of_its_own(tmp_path, devices):
    ids = tmp_path / "ids.npy"
    np.save(ids, zipf_batches(4, 16, 100, seed=0))
    case = {"dim": 8, "warmup": 2, "steps": 3, "seconds": 60.0}
    measured = run_case(Key(OURS, 100, devices), ids, case)
    assert len(measured["step_ms"]) == 3
    # Without training every candidate is as likely as any other.
    assert measured["losses"][0] == pytest.approx(np.log(16), abs=0.4)
    assert measured["state_bytes"] >= 2 * 100 * (8 + 1) * 4
    assert measured["peak_rss_mib"] > 50


@pytest.mark.bench
def test_input_pipeline_prints_a_line_for_each_case():
    cases = [f"--case={case}" for case in ("ids", "history", "model", "feed")]
    sizes = ("--rows", 20000, "--batch", 256, "--history", 5)
    lines = lines_of("input_pipeline", *sizes, *cases)
    cases = [f"20000 rows, {case}" for case in ("ids", "history 5", "model 5", "feed 5")]
    assert [*lines] == cases
    assert {line["unit"] for line in lines.values()} == {"examples/s"}
    assert all(line["n_runs"] == 5 and line["median"] > 0 for line in lines.values())


@pytest.mark.bench
def test_ingest_times_the_phases_of_a_file():
    lines = lines_of("ingest", "--rows", 2000, 4000, "--format", "csv", "--rounds", 1)
    phases = ["ours", *(f"ours {phase}" for phase in ("ingest", "vocabulary", "store", "open"))]
    expected = [f"{phase} csv rows={rows}" for rows in (2000, 4000) for phase in phases]
    assert [*lines] == [*expected, "ours csv rows=4000/2000"]


@pytest.mark.bench
def test_evaluate_compares_ours_with_the_plain_product_and_with_jax():
    words = ("--users", 40, "--items", 3000, "--dim", 8, "--positives", 3, "--runs", 2)
    more = ("--peers", "jax", "--peer-users", 16, "--matmul", 64)
    lines = lines_of("evaluate", *words, *more)
    size = "items=3000 dim=8"
    ours, gflops, plain, share, ratio = (
        lines[f"{name} users=40 {size}"]
        for name in ("ours", "ours rate", "matmul", "ours/matmul", "ours/jax")
    )
    jax = lines[f"jax users=16 {size}"]
    assert (ours["n_runs"], ours["unit"], gflops["unit"]) == (2, "users/s", "GFLOP/s")
    assert gflops["max"] == pytest.approx(2 * ours["max"] * 3000 * 8 / 1e9, abs=1e-5)
    assert 0 < share["max"] <= gflops["max"] / plain["min"] * 1.01
    assert (ratio["n_runs"], ratio["unit"], jax["unit"]) == (2, "times", "users/s")
    assert ratio["min"] > 0
