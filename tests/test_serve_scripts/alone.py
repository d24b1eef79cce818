"""`python alone.py KIND LIMITS`: a server in a process of its own, until stdin ends.

LIMITS is JSON, fields of `Limits`; it prints its port.
"""

import json
import sys

import numpy as np
from serving import FakeModel, FakeRecommender, Running

from recsys.bundles.signatures import SignatureInput
from recsys.serving.server.limits import Limits


class LongWinded(FakeModel):
    """Answers a number with as many MiB of text."""

    def __init__(self, version):
        super().__init__(version)
        self.signatures = {"serving_default": {"x": SignatureInput("DT_FLOAT", (-1,))}}

    def ask(self, signature, inputs):
        mib = [b"x" * int(x * 2**20) for x in inputs["x"].tolist()]
        return {"y": np.array(mib, object)}


KINDS = {"numbers": FakeModel, "people": FakeRecommender, "long": LongWinded}

if __name__ == "__main__":
    kind, limits = sys.argv[1:]
    with Running(Limits(**json.loads(limits)), kind=KINDS[kind]) as running:
        sys.stdout.write(f"{running.address[1]}\n")
        sys.stdout.flush()
        sys.stdin.read()
