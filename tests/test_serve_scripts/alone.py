"""`python alone.py KIND LIMITS`: a server in a process of its own, until stdin ends.

LIMITS is JSON, fields of `Limits`; it prints its port.
"""

import json
import sys

from serving import FakeModel, FakeRecommender, Running

from recsys.serving.server.limits import Limits

KINDS = {"numbers": FakeModel, "people": FakeRecommender}

if __name__ == "__main__":
    kind, limits = sys.argv[1:]
    with Running(Limits(**json.loads(limits)), kind=KINDS[kind]) as running:
        sys.stdout.write(f"{running.address[1]}\n")
        sys.stdout.flush()
        sys.stdin.read()
