"""Frozen outputs of whole runs: what a redesign of the inside may not change.

Nothing here imports the project. `tests/project/golden/<case>.json` holds, of four data sets:
rows read, rejected and duplicated, and the reasons; digests of the store's events and of
the vocabularies' ids by row; the loss curve; metrics, baselines and intervals; what the
pushed SavedModel answers in stock TensorFlow. A deliberate change freezes them again by

    FREEZE_GOLDEN=1 pytest tests/project/test_golden.py -m "pipeline or thorough" -k frozen

and its commit says why. To the bit are compared: what holds no float math, and trainings
of the same machine with each other (again, killed and resumed). Against stored numbers
losses may differ by 1e-5 (eight devices: 2e-6, SSE4.2 instead of AVX-512: 1e-6), and on a
CPU of another model two items of nearly one score may change places.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from golden_runs import WRITERS, GoldenRun, folder_digest, make_run, recsys
from on_tensorflow import run_on_tensorflow
from places import SUPPORT

FROZEN = Path(__file__).parent / "golden"
CPU = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text() + "model name : ?")[1]
LOSS = 1e-5
ALWAYS = {"part"}
CASES = [
    pytest.param(case, id=case, marks=[] if case in ALWAYS else [pytest.mark.thorough])
    for case in WRITERS
]


# --- whole runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory, part_run):
    """Returns a function that runs a case once."""
    made = {"part": GoldenRun("part", part_run / "copy")}

    def run(case):
        if case not in made:
            made[case] = make_run(case, tmp_path_factory.mktemp(case))
        return made[case]

    return run


def frozen(run):
    path = FROZEN / f"{run.case}.json"
    if os.environ.get("FREEZE_GOLDEN"):
        text = json.dumps({"cpu": CPU, **run.frozen()}, ensure_ascii=False)
        path.write_text(re.sub(r'("\w+": [{[])', r"\n\1", text) + "\n")
    return json.loads(path.read_text())


def assert_alike(got, wanted, tolerance, where=""):
    """Compares nested values; floats may differ by `tolerance`, and `got` may have more keys."""
    if isinstance(wanted, dict):
        assert wanted.keys() <= got.keys(), where
        for name, value in wanted.items():
            assert_alike(got[name], value, tolerance, f"{where}.{name}")
    elif isinstance(wanted, list):
        assert len(got) == len(wanted), where
        for place, value in enumerate(wanted):
            assert_alike(got[place], value, tolerance, f"{where}[{place}]")
    elif isinstance(wanted, float):
        assert got == pytest.approx(wanted, abs=tolerance, rel=tolerance), where
    else:
        assert got == wanted, where


@pytest.mark.slow
@pytest.mark.pipeline
@pytest.mark.parametrize("case", CASES)
def test_a_run_gives_what_is_frozen(case, runs):
    run = runs(case)
    wanted = frozen(run)
    assert run.counts() == wanted["counts"]
    assert run.vocabularies() == wanted["vocabularies"]
    assert run.store() == wanted["store"]
    assert_alike(run.curve(), wanted["curve"], LOSS, "curve")
    is_same_cpu = wanted["cpu"] == CPU
    assert_alike(run.evaluation(), wanted["evaluation"], 1e-6 if is_same_cpu else 5e-3, "metrics")
    answers = run.answers
    for name in ("known", "source"):
        assert answers[name] == wanted["answers"][name]
    assert_alike(answers["scores"], wanted["answers"]["scores"], 1e-6 if is_same_cpu else 1e-4)
    for ids, known in zip(
        answers["candidate_ids"], wanted["answers"]["candidate_ids"], strict=True
    ):
        assert ids == known or (not is_same_cpu and len({*ids} & {*known}) >= 0.9 * len(known))


@pytest.mark.slow
@pytest.mark.pipeline
@pytest.mark.parametrize("case", CASES)
def test_ingest_makes_the_data_of_the_pipeline_byte_by_byte(case, runs, tmp_path):
    run, out = runs(case), tmp_path / "data"
    run_on_tensorflow(SUPPORT / "ingest_alone.py", tmp_path, run.config, out)
    parts = {path.name for path in run.data.iterdir() if path.is_dir()}
    assert {"store", "vocabulary", "catalogue"} <= parts
    for part in parts:
        assert folder_digest(out / part) == folder_digest(run.data / part), part


@pytest.mark.slow
@pytest.mark.pipeline
@pytest.mark.thorough
def test_the_shipped_run_finds_what_the_readme_says(runs):
    metrics = runs("shipped").result["metrics"]
    assert round(metrics["recall@10"], 4) == 0.1638
    rounded = {
        name: round(figures["recall@10"], 4) for name, figures in metrics["baselines"].items()
    }
    assert rounded == {
        "popularity": 0.0843, "recent_popularity": 0.0517, "item_knn": 0.1076,
        "transitions": 0.114, "ials": 0.1293, "ease": 0.1182,
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.pipeline
@pytest.mark.thorough
def test_the_server_answers_what_the_saved_model_does(runs):
    run = runs("part")
    wanted, asked = run.answers, run.questions()
    names = list(asked)
    rows = [dict(zip(names, row, strict=True)) for row in zip(*asked.values(), strict=True)]
    server = subprocess.Popen(
        [sys.executable, "-m", "recsys", "serve", "--root", run.root, "--port", "0", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        url = json.loads(server.stdout.readline())["url"].rstrip("/")
        wait_for(lambda: urllib.request.urlopen(f"{url}/healthz", timeout=5).status == 200)  # noqa: S310
        body = json.dumps({"signature_name": "recommend", "instances": rows}).encode()
        with urllib.request.urlopen(f"{url}/v1/models/part:predict", body, timeout=60) as reply:  # noqa: S310
            predictions = json.load(reply)["predictions"]
    finally:
        server.terminate()
        server.communicate(timeout=60)
    assert server.returncode == 0
    for place, answer in enumerate(predictions):
        assert answer["candidate_ids"] == wanted["candidate_ids"][place]
        assert answer["scores"] == pytest.approx(wanted["scores"][place], abs=1e-6)
        assert (answer["known"], answer["source"]) == (
            wanted["known"][place], wanted["source"][place],
        )  # fmt: skip


@pytest.mark.slow
@pytest.mark.pipeline
def test_the_command_line_recommends_what_the_saved_model_does(runs):
    run = runs("part")
    user = run.questions()["user_id"][0]
    printed = recsys("recommend", "--root", run.root, "--user", user, "-k", 10, "--json").stdout
    items = json.loads(printed)["items"]
    answers = run.answers
    assert [item["id"] for item in items] == answers["candidate_ids"][0][:10]
    scores = [item["score"] for item in items]
    assert scores == pytest.approx(answers["scores"][0][:10], abs=1e-6)


def wait_for(happened, timeout_s=120):
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if happened():
                return
        except OSError:
            pass
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.05)


# --- trainings


def train_words(run, out):
    """`recsys train` on the run's data, as the run trained, with more checkpoints."""
    words = ["train", "--config", run.config, "--data", run.data, "--out", out / "model"]
    return [*words, "--set", "train.checkpoint.every_steps=20"]


def trained(out):
    """Returns the summary of a training, its curve, and a digest of its weights."""
    summary = json.loads((out / "model" / "training.json").read_text())
    curve = [[point["step"], point["loss"]] for point in summary["curve"]]
    return summary, curve, folder_digest(out / "model" / "weights")


@pytest.mark.slow
@pytest.mark.pipeline
def test_the_command_trains_what_the_run_trained_to_the_bit(runs, tmp_path):
    run = runs("part")
    recsys(*train_words(run, tmp_path))
    _, curve, weights = trained(tmp_path)
    assert curve == run.curve()
    (of_run,) = run.root.glob("artifacts/Trainer/model/*/weights")
    assert weights == folder_digest(of_run)


@pytest.mark.slow
@pytest.mark.pipeline
@pytest.mark.thorough
def test_eight_devices_train_the_frozen_curve(runs, tmp_path):
    run = runs("part")
    for name in ("once", "again"):
        recsys(*train_words(run, tmp_path / name), devices=8)
    summary, curve, weights = trained(tmp_path / "once")
    assert summary["devices"] == 8
    assert_alike(curve, frozen(run)["curve"], LOSS, "curve")
    assert trained(tmp_path / "again")[1:] == (curve, weights)


@pytest.mark.slow
@pytest.mark.pipeline
@pytest.mark.faults
@pytest.mark.parametrize("devices", [1, 8])
def test_a_killed_training_ends_with_the_bits_of_an_undisturbed_one(runs, tmp_path, devices):
    run = runs("part")
    recsys(*train_words(run, tmp_path / "whole"), devices=devices)
    flags = f"--xla_force_host_platform_device_count={devices}"
    killed = subprocess.Popen(
        [sys.executable, "-m", "recsys", *map(str, train_words(run, tmp_path / "killed"))],
        env={**os.environ, "XLA_FLAGS": flags},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    saved = tmp_path / "killed" / "checkpoints"
    wait_for(lambda: any(p.name.isdecimal() and int(p.name) >= 40 for p in saved.rglob("*")))
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert not (tmp_path / "killed" / "model" / "training.json").exists()
    recsys(*train_words(run, tmp_path / "killed"), devices=devices)
    summary, *bits = trained(tmp_path / "killed")
    assert summary["resumed_at"]
    assert bits == list(trained(tmp_path / "whole")[1:])


# --- refusals of the command line

DATA = (
    "data: {interactions: {files: one.csv, columns: {user: userId, item: movieId,"
    " timestamp: timestamp, rating: rating}, positive_at_least: 4.0}}"
)
FILES = {
    "recsys.yaml": f"name: x\nroot: runs\n{DATA}\n",
    "one.csv": "userId,movieId,rating,timestamp\n1,1,4.0,964982703\n",
    "empty.csv": "",
    "binary.csv": "\0\1\2",
    "there.yaml": "mine",
    "broken.yaml": "a: [1\n",
    "empty.yaml": "",
    "key.yaml": f"name: x\n{DATA}\nmodle: {{}}\n",
    "type.yaml": f"name: x\n{DATA}\nmodel: {{dim: none}}\n",
}
REFUSALS = [
    ("nonsense", 2, None),
    ("run nowhere.yaml", 2, "R101"),
    ("run broken.yaml", 2, "R102"),
    ("run empty.yaml", 2, "R102"),
    ("run key.yaml", 2, "R106"),
    ("run type.yaml", 2, "R106"),
    ("run --set train.epoch=3", 2, "R105"),
    ("run --set train.epochs=-1", 2, "R107"),
    ("run --set train.epochs", 2, "R104"),
    ("run --set data.interactions.files=nowhere.csv --set root=r", 1, "R201"),
    ("recommend --user 1 --root nothing", 2, "R904"),
    ("recommend --user 1 --config nowhere.yaml", 2, "R101"),
    ("recommend --root nothing", 2, "R548"),
    ("recommend --user 1 --root nothing -k 0", 2, None),
    ("recommend --users one.csv --root nothing --out a.parquet", 2, "R904"),
    ("rollback --root nothing", 2, "R904"),
    ("serve --root nothing", 2, "R904"),
    ("lineage nothing", 1, "R501"),
    ("clean nowhere.yaml", 2, "R101"),
    ("check nowhere.csv", 1, "R201"),
    ("check binary.csv", 1, "R208"),
    ("check one.csv --map colour=userId", 2, "R258"),
    ("check one.csv --map user=who", 2, "R258"),
    ("check one.csv --out there.yaml", 2, "R259"),
    ("train --data nothing --out m", 1, "R220"),
    ("evaluate nothing --data nothing --out e", 1, "R220"),
    ("compare nothing nothing --data nothing --out e", 1, "R220"),
    ("export nothing", 2, None),
    ("plan --devices 0", 2, None),
    ("plan nowhere.yaml", 2, "R101"),
    ("synth --users 0 --items 10 --interactions 10 --out s", 2, None),
    ("simulate-nights --out s --nights 0", 2, None),
    ("freeze-schema --out s --set root=nothing", 1, "R246"),
]
STARTS_A_PROCESS = {"train", "evaluate", "compare", "freeze-schema"}


@pytest.fixture(scope="module")
def commands():
    """Returns a function that runs a command in a folder: its exit code and its stderr."""
    script = SUPPORT / "forked_commands.py"
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, script], **options) as process:

        def run(words, folder):
            process.stdin.write(json.dumps([words, str(folder)]) + "\n")
            process.stdin.flush()
            code = int(process.stdout.readline())
            return code, (folder / "stderr.txt").read_text()

        yield run


@pytest.mark.parametrize(
    ("words", "exit_code", "code"),
    [
        pytest.param(
            *case, marks=[pytest.mark.thorough] if case[0].split()[0] in STARTS_A_PROCESS else []
        )
        for case in REFUSALS
    ],
)
def test_a_wrong_command_is_refused(words, exit_code, code, tmp_path, commands):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "nothing").mkdir()
    found, stderr = commands(words.split(), tmp_path)
    codes = re.findall(r"\[(R\d{3})\]", stderr)
    assert found == exit_code, stderr
    assert codes[:1] == ([code] if code else []), stderr
    assert "Traceback" not in stderr


def test_what_is_asked_for_is_printed_on_stdout(tmp_path):
    assert recsys("--version").stdout.strip()
    printed = json.loads(recsys("schema").stdout)
    assert {"name", "data", "model", "train", "evaluate"} <= printed["properties"].keys()
