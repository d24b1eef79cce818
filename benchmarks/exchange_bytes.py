"""`python -m benchmarks.exchange_bytes`: what a device sends for the tables in a step.

The tables of two towers: 10⁹ users and 10⁸ items, split by rows, and two small features of
the items on every device; 512 examples a device, each with a history of 50 and one candidate
beside it. The training step is compiled for as many simulated devices, and its collectives
are read from the compiled program: of an exchange the capacity that is expected, for ids by
Zipf's law. The lines, in MB that a device sends in a step:

- `gathered devices=N`: bags and gradients gathered, as on few devices;
- `auto devices=N`: each exchange chosen by bytes;
- `between nodes …`: what of it leaves a node, by the plan;
- `planned/compiled …`: what the plan says over it.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from typer import Option

from benchmarks.measure import ZIPF_EXPONENT, call, log, print_line, run, simulated

ITEMS, USERS = 10**8, 10**9
_DIM, _HISTORY, _EXAMPLES = 64, 50, 512
"""Width of a row [floats], items of a history, and examples of a device in a step."""
_DEVICES = [2, 4, 8, 16, 64]
_EXCHANGES = ["gathered", "auto"]
_TOKENS = {"genres": (21, 8), "words": (2138, 16)}


def main(
    devices: Annotated[list[int], Option(help="Simulated.")] = _DEVICES,
    exchanges: Annotated[list[str], Option(help="Ways to compare.")] = _EXCHANGES,
    node: Annotated[int, Option(help="Devices of a node.")] = 8,
    between: Annotated[str, Option(help="Dtype of rows between nodes.")] = "float32",
) -> None:
    """Compiles each case in a process of its own and prints its lines."""
    share = distinct_share(_EXAMPLES * _HISTORY)
    log(f"{share:.3f} of a device's items are distinct")
    for n in devices:
        for exchange in exchanges:
            ways = {"exchange": exchange, "between": between, "node": node}
            watched = call(measure, simulated(n), n=n, share=share, **ways)
            sent, peak = watched.result, watched.peak_rss_mib
            case, ratio = f"{exchange} devices={n}", sent["planned"] / sent["compiled"]
            leaving = [sent["leaving"] / 1e6]
            print_line("exchange_bytes", case, [sent["compiled"] / 1e6], "MB", peak)
            print_line("exchange_bytes", f"between nodes {case}", leaving, "MB", peak)
            print_line("exchange_bytes", f"planned/compiled {case}", [ratio], "ratio", peak)
            log(f"{case}: {sent['by_feature']}")


def distinct_share(n: int) -> float:
    """Returns the share of distinct items in `n` draws by Zipf's law."""
    weights = np.arange(1, ITEMS + 1, dtype=np.float64) ** -ZIPF_EXPONENT
    return float(-np.expm1(-n * weights / weights.sum()).sum() / n)


def measure(n: int, exchange: str, between: str, share: float, node: int) -> dict[str, Any]:
    """Returns the bytes that a device sends in a step: compiled, planned, and by feature."""
    import jax
    import keras
    from jax.sharding import NamedSharding, PartitionSpec

    from recsys import embedding
    from recsys.embedding.step_check import sent_collectives
    from recsys.embedding.traffic import leaving, total

    options: dict[str, Any] = {
        "optimizer": embedding.RowWiseAdagrad(0.05), "combiner": "mean", "exchange": exchange,
        "between_nodes_dtype": between, "embedding_dim": _DIM,
    }  # fmt: skip
    items = embedding.TableConfig("items", ITEMS, distinct_share=share, **options)
    users = embedding.TableConfig("users", USERS, **options)
    tokens = {
        name: embedding.TableConfig(name, rows, **options) for name, (rows, _) in _TOKENS.items()
    }
    tables = {"history": items, "item": items, "user": users, **tokens}
    lengths = {"history": _HISTORY, **{name: length for name, (_, length) in _TOKENS.items()}}
    mesh = embedding.device_mesh(devices=n)
    configs = [items, users, *tokens.values()]
    embedding.activate(embedding.table_layout(configs, mesh=mesh, node_devices=node))

    class Features(embedding.SparseModel):
        """All features side by side."""

        def __init__(self) -> None:
            super().__init__()
            self.embed = embedding.ShardedEmbedding(
                {
                    name: embedding.FeatureConfig(name, table, (None,), (None, _DIM))
                    for name, table in tables.items()
                }
            )

        def call(self, x: dict[str, Any]) -> Any:
            """Returns the embeddings `[batch, features * 64]`."""
            ids = {name: x[name] for name in tables}
            weights = {name: x[name] > 0 if name in lengths else None for name in tables}  # Masks.
            return keras.ops.concatenate(list(self.embed(ids, weights).values()), axis=-1)

    place = NamedSharding(mesh.backend_mesh, PartitionSpec(mesh.axis_names[0]))

    def array(dtype: str, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((n * _EXAMPLES, *shape), dtype, sharding=place)

    x = {name: array("int32", *([lengths[name]] if name in lengths else [])) for name in tables}
    model, optimizer = Features(), keras.optimizers.SGD(0.1)
    with keras.StatelessScope(initialize_variables=False):
        model.embed.build()
        model.built = True
        model.compile(optimizer, loss="mse")
        compiled = model.prove((x, array("float32", len(tables) * _DIM)))
    sent, traffic = sent_collectives(compiled), model.step_traffic
    planned = [
        collective
        for table in traffic
        for collectives in (*map(table.to_read, table.reads), table.to_update())
        for collective in collectives
    ]
    expected = sent.expected(planned)
    if expected is None:
        raise ValueError(f"no capacities of the compiled step are those of the plan: {planned}")
    return {
        "compiled": total(expected),
        "planned": total(planned),
        "leaving": leaving(planned),
        "by_feature": {
            f"{f.feature} ({f.exchange})": [f.read_bytes, f.update_bytes, f.leaving_bytes]
            for table in traffic
            for f in table.by_feature()
        },
    }


if __name__ == "__main__":
    run(main)
