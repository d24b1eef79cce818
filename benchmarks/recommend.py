"""`python -m benchmarks.recommend`: a file of users answered into a Parquet file.

`recsys recommend --users FILE --out FILE.parquet` on a bundle of `--items` items, with
what users did left out of their lists. The lines, for each `--items`:

- `rate`: users answered a second, from the first byte read to the last one written,
  without the loading of the bundle;
- `load`: the rest of the process [s].
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import numpy as np
from typer import Option

from benchmarks.measure import module, print_line, run, watch, words_of
from benchmarks.serve import ITEMS, Bundle, make_bundle
from recsys.bundles.publishing import publish


def main(
    items: list[int] = ITEMS,
    users: Annotated[int, Option(help="Of the bundle.")] = 10_000,
    asked: Annotated[int, Option(help="Rows of the file, users drawn at random.")] = 200_000,
    dim: Annotated[int, Option(help="Width of the embeddings [floats].")] = 64,
    k: Annotated[int, Option("-k", help="Items of an answer.")] = 100,
    batch: Annotated[int, Option(help="Users that are answered at a time.")] = 8192,
    clusters: Annotated[int, Option(help="Of the items; 0: embeddings as drawn.")] = 0,
    runs: int = 3,
    bundle: Bundle = None,
) -> None:
    """Measures each size."""
    numbers = np.random.default_rng(0).integers(1, users + 1, asked)
    for n_items in items:
        case = f"items={n_items} dim={dim} k={k} users={asked}"
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            sizes = {"users": users, "items": n_items, "dim": dim, "k": k, "clusters": clusters}
            made = bundle or make_bundle(folder / "bundle", **sizes)
            publish(made, folder / "root" / "serving" / "world", keep=1)
            file = folder / "users.txt"
            file.write_text("\n".join(f"u{number}" for number in numbers))
            command = module("recsys", "recommend", "--root", folder / "root", "--json", "-k", k)
            command += words_of(users=file, out=folder / "out.parquet", batch=batch)
            ended = [watch(command) for _ in range(runs)]
        peak = max(watched.peak_rss_mib for watched in ended)
        rates = [watched.result["users"] / watched.result["seconds"] for watched in ended]
        print_line("recommend", f"rate {case}", rates, "users/s", peak)
        loads = [watched.seconds - watched.result["seconds"] for watched in ended]
        print_line("recommend", f"load {case}", loads, "s", peak)


if __name__ == "__main__":
    run(main)
