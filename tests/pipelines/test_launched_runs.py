"""Whole runs with stages in several processes equal runs in one process."""

import json

import pytest
import yaml
from crash_world import write_events, write_world
from golden_runs import recsys

pytestmark = [pytest.mark.pipeline, pytest.mark.thorough]


class Nights:
    """Two runs on one root: the second one on more data, from the first one's model on."""

    def __init__(self, folder, devices, processes):
        self.folder = folder
        config = yaml.safe_load(write_world(folder).read_text())
        config["launcher"], config["warm_start"] = {"processes": processes}, {}
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        self.runs = [self.run(devices // processes)]
        write_events(folder / "ratings-2.csv", 300, 50, 55)
        self.runs.append(self.run(devices // processes))

    def run(self, devices, *words):
        words = ("run", self.folder / "config.yaml", "--json", *words)
        return json.loads(recsys(*words, devices=devices).stdout.splitlines()[-1])

    def models(self):
        return sorted(self.folder.glob("root/artifacts/Trainer/model/*"), key=lambda p: int(p.name))

    def trainings(self):
        return [json.loads((model / "training.json").read_text()) for model in self.models()]

    def evaluations(self):
        files = self.folder.glob("root/artifacts/RetrievalEvaluator/evaluation/*/evaluation.json")
        read = [json.loads(p.read_text()) for p in sorted(files, key=lambda p: int(p.parent.name))]
        return [(evaluation["metrics"], evaluation["verdict"]["blessed"]) for evaluation in read]

    def losses(self):
        return [[point["loss"] for point in told["curve"]] for told in self.trainings()]

    def bundles(self):
        """Returns the names of the files of each bundle."""
        folders = [self.folder / "root/serving/tiny" / str(n) for n in (1, 2)]
        return [sorted(path.relative_to(f) for path in f.rglob("*")) for f in folders]


def test_four_processes_train_and_evaluate_what_one_does_on_as_many_devices(tmp_path):
    one, four = Nights(tmp_path / "one", 4, 1), Nights(tmp_path / "four", 4, 4)
    assert [t["processes"] for t in one.trainings()] == [1, 1]
    assert [t["processes"] for t in four.trainings()] == [4, 4]
    assert four.trainings()[1]["warm_start"]
    for ours, theirs in zip(four.losses(), one.losses(), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)
    for (ours, our_verdict), (theirs, their_verdict) in zip(
        one.evaluations(), four.evaluations(), strict=True
    ):
        assert ours == pytest.approx(theirs, rel=1e-3)
        assert our_verdict == their_verdict
    assert one.bundles() == four.bundles()
    # Where a model is trained is no reason to train it again.
    again = four.run(4, "--set", "launcher=local")
    assert again["bundle"] == four.runs[1]["bundle"]
    assert len(four.models()) == 2
