"""The whole way in one program, without TFX: data, an own model, figures, a bundle, answers.

`python -m examples.program FOLDER` runs it on made-up data in an empty folder.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")

import recsys
from examples.custom_model import Averaged
from recsys.synth import synthesize


def main(folder):
    synthesize(folder, users=150, items=60, interactions=4_000, seed=0)
    own = Averaged.Config(dim=16, history=8)
    train = recsys.TrainConfig(batch_size=64, epochs=2)
    config = recsys.load_config(folder / "config.yaml")
    config = config.model_copy(update={"model": own, "train": train})

    data = recsys.ingest(config, out=folder / "data")
    model = Averaged.from_config(config, data.spec)
    result = recsys.Trainer(config.train, checkpoints=folder / "ckpt").fit(model, data)
    print(result)
    print(recsys.evaluate(model, data, baselines=["popularity", "ials"]))
    bundle = recsys.export(model, data, folder / "bundle")
    answer = recsys.load_bundle(bundle).recommend(user=data.users.own_ids[0].as_py(), k=10)
    print(answer)
    return answer


if __name__ == "__main__":
    main(Path(sys.argv[1]))
