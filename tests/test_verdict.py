"""The verdict at literal numbers."""

import pytest

from recsys.config import BlessConfig
from recsys.evaluation.verdict import judge

CONFIG = BlessConfig(metric="mrr", at_least=0.10, over_popularity=1.5, over_blessed=0.9)


@pytest.mark.parametrize(
    ("model", "popularity", "last", "blessed"),
    [
        (0.20, 0.10, 0.21, True),
        (0.20, 0.10, None, True),
        (0.09, 0.01, None, False),
        (0.20, 0.14, 0.10, False),
        (0.20, 0.10, 0.23, False),
        (0.75, 0.50, None, True),
    ],
    ids=[
        "all hold",
        "no other model",
        "too low",
        "too near to popularity",
        "worse than the last",
        "just reached",
    ],
)
def test_every_condition_must_hold(model, popularity, last, blessed):
    verdict = judge(
        CONFIG, {"mrr": model}, {"mrr": popularity}, None if last is None else {"mrr": last}
    )
    assert verdict.blessed is blessed
    assert len(verdict.reasons) == 3


def test_the_reasons_hold_the_figures():
    verdict = judge(CONFIG, {"mrr": 0.2}, {"mrr": 0.1}, {"mrr": 0.3})
    assert verdict.reasons == [
        "mrr is 0.2000: at least the 0.1000 asked for",
        "mrr is 0.2000: at least 1.5 × 0.1000, which is that of popularity",
        "mrr is 0.2000: below 0.9 × 0.3000, which is that of the last blessed model",
    ]
