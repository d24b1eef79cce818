"""The seam of tasks: the task of `examples.custom_task` goes through every stage."""

import contextlib
import json
import os
import re
import subprocess
import sys

import httpx
import numpy as np
import pytest
import yaml
from data_folders import counted, event_table, write_data
from places import ROOT
from waiting import wait_for

import recsys
from recsys.bundles.publishing import publish

N_USERS, N_ITEMS, CUT = 120, 30, 1_000
CONFIG = {
    "plugins": ["examples.custom_task"],
    "model": {"type": "pointwise", "dim": 8, "init_stddev": 0.3},
    "train": {
        "batch_size": 64,
        "epochs": 20,
        "table_learning_rate": 0.2,
        "tower_learning_rate": 0.01,
    },
}
JUDGED = {
    "plugins": ["examples.custom_task"],
    "evaluate": {
        "metrics": ["pair_log_loss", "pair_auc"],
        "baselines": ["pair_constant", "pair_item_mean"],
        "resamples": 200,
    },
    "bless": {
        "metric": "pair_log_loss",
        "over": {"pair_constant": 1.0, "pair_item_mean": 1.0},
        "rules": [{"metric": "pair_auc", "at_least": 0.6, "over": {"pair_constant": 1.0}}],
    },
}

RUN = """
import json, runpy, sys
for module, words in json.loads(sys.argv[1]):
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def likes(user, item):
    """Users of one half take the items of the same half."""
    return user % 2 == item % 2


def events(random, first, n):
    user = random.integers(0, N_USERS, n)
    item = random.integers(0, N_ITEMS // 2, n) * 2 + user % 2
    return [(f"u{u}", f"i{i}", first + k) for k, (u, i) in enumerate(zip(user, item, strict=True))]


class World:
    """Data with planted structure, and the stages as a user starts them."""

    def __init__(self, folder):
        self.folder, random = folder, np.random.default_rng(5)
        train, held_out = events(random, 0, 900), events(random, CUT, 300)
        users = counted([f"u{u}" for u in range(N_USERS)], [e[0] for e in train])
        items = counted([f"i{i}" for i in range(N_ITEMS)], [e[1] for e in train])
        tables = (event_table(part, users, items) for part in (train, held_out))
        write_data(folder / "data", CUT, *tables, users, items)

    def stage(self, name, config, **options):
        """Returns the module of a stage, and its options."""
        options["config"] = self.folder / f"{name}.yaml"
        options["config"].write_text(yaml.safe_dump(config))
        words = [f"--{key}={value}" for key, value in options.items()]
        return f"recsys.stages.{name}", [f"--data={self.folder / 'data'}", *words]

    def run(self, *stages, backend="jax"):
        """Runs stages one after the other in a process of their own."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": backend}
        command = [sys.executable, "-c", RUN, json.dumps(stages)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    world = World(tmp_path_factory.mktemp("pointwise"))
    model, out = world.folder / "model", world.folder / "evaluation"
    train = world.stage("train", CONFIG, out=model)
    world.run(train, world.stage("evaluate", JUDGED, model=model, out=out))
    export = {"name": "pointwise", "plugins": ["examples.custom_task"]}
    folders = {"model": model, "out": world.folder / "bundle", "evaluation": out}
    world.run(world.stage("export", export, **folders), backend="tensorflow")
    return world


def test_the_tutorial_shows_the_code_of_the_example():
    text = (ROOT / "docs" / "tutorial" / "own_task.md").read_text()
    example = (ROOT / "examples" / "custom_task.py").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    assert [block for block in blocks if block not in example] == []


def test_it_is_trained_on_positives_and_sampled_negatives(world):
    training = json.loads((world.folder / "model" / "training.json").read_text())
    # A negative is drawn from all items, half of which the user takes: -(3 ln 2/3 + ln 1/3) / 4.
    assert 0.4 < training["curve"][-1]["loss"] < 0.6 < training["curve"][0]["loss"]


def test_it_is_judged_by_its_metrics_beside_its_baselines(world):
    content = json.loads((world.folder / "evaluation" / "evaluation.json").read_text())
    metrics, baselines = content["metrics"], content["baselines"]
    assert baselines["pair_constant"]["pair_log_loss"] == pytest.approx(np.log(2))
    assert baselines["pair_constant"]["pair_auc"] == pytest.approx(0.5)
    # A negative is drawn from all items, half of which the user likes: AUC is 3/4 at the most.
    assert 0.65 < metrics["pair_auc"] < 0.8
    assert metrics["pair_log_loss"] < baselines["pair_item_mean"]["pair_log_loss"]
    low, high = content["intervals"]["pair_auc"]
    assert low < metrics["pair_auc"] < high
    assert content["verdict"]["blessed"]
    against = [(rule["metric"], rule["against"]) for rule in content["verdict"]["rules"]]
    strongest = min(baselines, key=lambda name: baselines[name]["pair_log_loss"])
    assert against[:2] == [("pair_log_loss", "pair_constant"), ("pair_log_loss", "pair_item_mean")]
    assert against[-1] == ("pair_log_loss", strongest)


def test_the_bundle_ranks_where_the_plugin_is_not_installed(world):
    bundle = recsys.load_bundle(world.folder / "bundle")
    items = [f"i{i}" for i in range(N_ITEMS)]
    ranked = [item.id for item in bundle.rank("u7", items)]
    assert all(likes(7, int(item[1:])) for item in ranked[: N_ITEMS // 3])


def test_the_bundle_is_served(world):
    publish(world.folder / "bundle", world.folder / "serving" / "pointwise", 1)
    folder = str(world.folder / "serving" / "pointwise")
    command = [sys.executable, "-m", "recsys", "serve", "--model-dir", folder, "--port", "0"]
    command.append("--json")
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(server.terminate)
        url = json.loads(server.stdout.readline())["url"]
        rows = [{"user_id": "u7", "item_id": item} for item in ("i1", "i2")]
        body = {"signature_name": "score", "instances": rows}
        predict = f"{url}/v1/models/pointwise:predict"
        wait_for(lambda: httpx.post(predict, json=body, timeout=60).status_code != 503)  # It loads.
        answer = httpx.post(predict, json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    first, second = answer.json()["predictions"]
    assert first > second
