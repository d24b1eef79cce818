"""`python -m benchmarks.serve_rank --model-dir DIR`: rankings by a served model, one client.

`DIR` is the serving folder of a run of a ranking model, such as `ROOT/serving/NAME`. The
server and the client share this machine. Users, items and their context are drawn from what the
bundle knows. The lines of a round:

- `p50`, `p99`: time of an answer of `recsys serve` for one user and `--items` items [ms];
- `savedmodel p50`, `p99`: time of the call of the SavedModel alone, in another process [ms].
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from typer import Option

from benchmarks.measure import call, run
from benchmarks.serve import running
from recsys.bundles.publishing import latest
from recsys.data.vocabulary import Vocabulary

_WARM_UP, _REQUESTS = 100, 1000


def main(
    model_dir: Annotated[Path, Option()], items: int = 500, seconds: float = 20.0, runs: int = 3
) -> None:
    """Measures a bundle."""
    figures: dict[str, list[float]] = {}
    with running(model_dir, 0, f"items={items}") as server:
        server.wait_for(int(latest(model_dir).name))
        case = {"folder": str(model_dir), "items": items, "seconds": seconds}
        for _ in range(runs):
            of_server = call(ask_server, port=server.port, **case).result
            of_model = call(ask_model, **case).result
            for name, times in (("", of_server), ("savedmodel ", of_model)):
                for percent in (50, 99):
                    value = float(np.percentile(times, percent))
                    figures.setdefault(f"{name}p{percent}", []).append(value)
        for name, values in figures.items():
            server.print(name, values, "ms", "serve_rank")


def ask_server(port: int, folder: str, items: int, seconds: float) -> list[float]:
    """Returns the times of answers over HTTP [ms]."""
    connection = http.client.HTTPConnection("127.0.0.1", port)

    def ask(body: dict[str, Any]) -> None:
        connection.request("POST", f"/v1/models/{Path(folder).name}:rank", json.dumps(body))
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(answer.read()[:500])
        answer.read()

    return _timed(ask, _requests(Path(folder), items), seconds)


def ask_model(folder: str, items: int, seconds: float) -> list[float]:
    """Returns the times of calls of the SavedModel [ms]."""
    from recsys.serving.label_scorer import LabelScorer, RankQuery

    scorer = LabelScorer.open(latest(Path(folder)))
    times: list[float] = []
    ask = scorer.ask

    def timed(*arguments: Any) -> Any:
        started = time.perf_counter()
        answer = ask(*arguments)
        times.append((time.perf_counter() - started) * 1e3)
        return answer

    setattr(scorer, "ask", timed)  # noqa: B010  mypy: a method.
    _timed(lambda body: scorer.rank(RankQuery(**body)), _requests(Path(folder), items), seconds)
    return times[_WARM_UP:]


def _requests(folder: Path, n_items: int) -> Iterator[dict[str, Any]]:
    """Yields requests of known users and items."""
    rng, bundle = np.random.default_rng(0), latest(folder)
    users, items = (
        Vocabulary.load(bundle / "vocabulary" / f"{side}.parquet").own_ids.drop_null().to_pylist()
        for side in ("users", "items")
    )
    while True:
        chosen = rng.integers(len(items), size=n_items).tolist()
        user = users[int(rng.integers(len(users)))]
        yield {"user": user, "items": [items[place] for place in chosen]}


def _timed(
    ask: Callable[[dict[str, Any]], Any], requests: Iterator[dict[str, Any]], seconds: float
) -> list[float]:
    times: list[float] = []
    started = time.perf_counter()
    while len(times) < _WARM_UP + _REQUESTS and time.perf_counter() < started + seconds:
        body = next(requests)
        before = time.perf_counter()
        ask(body)
        times.append((time.perf_counter() - before) * 1e3)
    return times[_WARM_UP:]


if __name__ == "__main__":
    run(main)
