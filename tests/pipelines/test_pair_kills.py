"""A run of a pair that is killed in one part after another."""

from __future__ import annotations

import os
import shutil
import signal
import time

import pytest
from crash_checks import breaches, wait_until_ended
from crash_world import World

from recsys.system.events import EventReader

pytestmark = [pytest.mark.faults, pytest.mark.pipeline]

RANKER = """
ranker:
  model: {type: dcn_v2, widths: [16]}
  labels: {like: 1.0}
  candidates: 20
  negatives: 2
  train: {epochs: 2, batch_size: 128, checkpoint: {every_steps: 5}}
"""
LOSS = "loss "
POINTS = [
    ("StatisticsGen.Interactions", []),
    ("Transform.Items", []),
    ("InteractionEncoder", []),
    ("Trainer", [LOSS]),
    ("RankTrainer", ["Trains a retriever", LOSS]),
    ("RankTrainer", ["Draws from its lists", "candidates"]),
    ("RankTrainer", ["Trains the ranker", LOSS]),
    ("RankTrainer", ["Trains the ranker", "Trains anew", " 100%"]),  # Then they are joined.
    ("RetrievalEvaluator", []),
    ("Exporter", ["candidates of"]),
    ("Pusher", []),
]
"""Steps, with texts of their events in the order in which they come before the kill; a step without
texts is killed after a third of its time."""


def words(event):
    share = event.get("done", 0) / event.get("total", 1)
    return f"{event.get('text')} {share:.0%}"


def kill(world, step, texts, seconds):
    """Starts a run and kills it; returns its steps until then."""
    run = world.start()
    events = EventReader(run.events)
    texts, seen = [*texts], []
    while True:
        for event in events:
            seen += [event["step"]] if event["kind"] == "step_started" else []
            if seen[-1:] == [step] and texts and texts[0] in words(event):
                texts.pop(0)
        if seen[-1:] == [step] and not texts:
            break
        assert run.is_alive(), (seen, texts)
        time.sleep(0.01)
    time.sleep(seconds)
    os.killpg(run.pid, signal.SIGKILL)
    assert run.end().code == -signal.SIGKILL
    assert wait_until_ended(world) == []
    return seen


def test_a_pair_killed_in_each_part_is_that_of_an_undisturbed_run(tmp_path):
    world = World(tmp_path, RANKER)
    try:
        whole = world.run()
        assert whole.code == 0
        expected = whole.model
        shutil.rmtree(world.root)
        for step, texts in POINTS:
            seconds = 0.0 if texts else whole.steps[step]["seconds"] / 3
            assert kill(world, step, texts, seconds)[-1] == step
        again = world.run()
        assert again.code == 0
        assert again.model == expected
        assert breaches(world, len(POINTS)) == []
    finally:
        world.close()
