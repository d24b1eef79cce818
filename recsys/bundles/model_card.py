"""The bundle's MODEL_CARD.md: what it is, how good it is, where it ends."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from recsys import registry
from recsys.config import Repeats
from recsys.registry import Choice
from recsys.system.source_version import version_text


def model_card(
    name: str,
    counts: Mapping[str, int],
    training: Mapping[str, Any],
    evaluation: Mapping[str, Any] | None,
    trained_with: Mapping[str, Any],
    repeats: Repeats = "exclude",
) -> str:
    """Returns the text of the card, with Hugging Face's YAML header.

    Args:
        name: Name of the served model.
        counts: How many of what the bundle holds, by name.
        training: The trainer's `training.json`.
        evaluation: The evaluator's `evaluation.json`, if there is one.
        trained_with: The trainer's config.
        repeats: What becomes of items that a user has seen, by default.
    """
    excludes_seen = repeats == "exclude"
    parts = [
        _header(name, evaluation),
        f"# {name}",
        _summary(trained_with["model"]),
        "## What is in it",
        _table(("what", "how many"), [(what, f"{n:,}") for what, n in counts.items()]),
        "## Training",
        _training(training, Choice("loss").read(trained_with["train"]["loss"]).title),
        f"```json\n{json.dumps(trained_with, indent=1)}\n```",
        "## Evaluation",
        _evaluation(evaluation),
        "## Use",
        _USE.format(excludes_seen),
        _table(("signature", "takes", "gives"), _SIGNATURES),
        _CONVENTIONS.format(int(excludes_seen)),
        "## Limits",
        _LIMITS,
    ]
    return "\n\n".join(parts) + "\n"


_SUMMARY = """{} Candidates are ranked by the {} of the two. The bundle is a TensorFlow
SavedModel that takes raw ids and needs nothing but TensorFlow."""

_SIMILARITIES = {"cosine": "cosine", "dot": "dot product"}


def _summary(model: Mapping[str, Any]) -> str:
    config = registry.config_type("model", model.get("type", "two_tower"))
    return _SUMMARY.format(getattr(config, "summary", ""), _SIMILARITIES[model["similarity"]])


_USE = """```python
import tensorflow as tf

model = tf.saved_model.load("path/of/this/folder")
answer = model.signatures["recommend"](
    user_id=tf.constant(["42"]),
    history=tf.constant([[""]]),  # padding only: the stored history
    exclude_seen=tf.constant([{}]),
)
answer["candidate_ids"], answer["scores"], answer["known"], answer["source"]
```"""

_SIGNATURES = [
    (
        "recommend",
        "user_id, history, exclude_seen, and raw user columns, see below",
        "candidate_ids, scores [b, k], known [b], source [b]",
    ),
    (
        "recommend_filtered",
        "the same, exclude_ids, and only_<feature> of the items, see below",
        "the same",
    ),
    ("serving_default", "examples: serialized tf.Examples, see below", "the same"),
    ("embed_query", "user_id, history, and raw user columns", "embedding [b, dim]"),
    (
        "embed_candidate",
        "item_id, and raw item columns, see below",
        "embedding [b, dim], known [b]",
    ),
    (
        "prepare_query",
        "as recommend",
        "embedding [b, dim], known [b], source [b], seen_rows [n], seen_offsets [b + 1]",
    ),
    ("stored_history", "user_id", "item_ids [b, longest], known [b]"),
]

_CONVENTIONS = """`history` [b, any] holds item ids, the newest first, padded with the empty string.
A row of nothing but padding stands for the stored history; any other row replaces it.
Candidates come best first, so whoever wants fewer takes the first ones; where fewer than
k items remain the rest of `candidate_ids` is empty. `exclude_seen` [b] leaves out what the
user did. The features of a tf.Example are `user_id` (one text), `history` (texts; may be
missing), `exclude_seen` (one integer; {} where it is missing), and the raw user columns
(texts; may be missing).

`source` tells what an answer rests on: `user`, a row that training learnt of this user;
`history`, items with a trained row; `features`; or `popularity`, where nothing is known:
the scores are then each item's share of all positive interactions.

`exclude_ids` and `only_<feature>` are texts [b, any], padded with the empty string.
`only_genres` leaves the items with one of the named genres; padding alone leaves all, and
several features must all hold. `catalogue/items.parquet` has the names. For those who rank
on their own, `prepare_query` tells which item rows to leave out of answer i: `seen_rows`
from `seen_offsets[i]` up to `seen_offsets[i + 1]`; item rows are those of
`item_embeddings.npy`, and of `catalogue/items.parquet` from 1 on.

`user_columns` and `item_columns` in `manifest.json` list the raw columns. Each is text
[b, any], padded with the empty string: the values of a list one by one, numbers as they are
written, dates as whole seconds since 1970, UTC, as years, or in ISO 8601. Where all columns
of a user or an item are empty, the features are those that the bundle holds. Text must be
in Unicode's normal form C (NFC), as ids must be, for that is what the ingest makes of the
raw data."""

_LIMITS = """- It ranks items by what users did in the training data, and repeats the data's biases,
  that for popular items among them.
- A user without a training interaction is served from history and features; one without
  either gets what is popular, as every other such user does. `known` is false for users
  that the data don't hold.
- An item of the catalogue that nobody took yet is recommended by its features alone. One
  that came after training is no candidate until the next run; `embed_candidate` embeds it
  from its features.
- Stored histories are those of the data that it was made from; newer ones must be sent.
- The evaluation looks back at recorded behaviour; it does not measure what people do when
  they see the recommendations."""


def _header(name: str, evaluation: Mapping[str, Any] | None) -> str:
    # JSON is YAML, and quotes whatever text a name may hold.
    fields: dict[str, Any] = {
        "library_name": "tensorflow",
        "tags": ["recommendation", "retrieval", "two-tower", "keras"],
    }
    if evaluation:
        metrics = [{"type": m, "name": m, "value": v} for m, v in evaluation["metrics"].items()]
        result = {
            "task": {"type": "retrieval", "name": "Candidate retrieval"},
            "dataset": {"type": name, "name": name},
            "metrics": metrics,
        }
        fields["model-index"] = [{"name": name, "results": [result]}]
    lines = "\n".join(f"{key}: {json.dumps(value)}" for key, value in fields.items())
    return f"---\n{lines}\n---"


def _training(training: Mapping[str, Any], loss: str) -> str:
    return (
        f"{loss}, on the interactions that were not held out:"
        f" {training['steps']:,} steps, {training['examples']:,} examples,"
        f" {training['devices']} device(s) of the kind {training['platform']}."
        f" Commit of the code: {version_text(training.get('source'))}."
    )


def _evaluation(evaluation: Mapping[str, Any] | None) -> str:
    if not evaluation:
        return "The bundle was made without an evaluation."
    others, intervals = evaluation["baselines"], evaluation["intervals"]
    header = ("metric", "model", "interval", *(name.replace("_", " ") for name in others))
    rows = [
        (
            metric,
            f"{value:.4f}",
            " … ".join(f"{end:.4f}" for end in intervals.get(metric, ())) or "–",
            *(_figure(other.get(metric)) for other in others.values()),
        )
        for metric, value in evaluation["metrics"].items()
    ]
    verdict = evaluation["verdict"]
    n_sampled, n_items = evaluation.get("sampled_negatives"), evaluation["candidates"]
    among = f"{n_sampled:,} random" if n_sampled else f"all {n_items:,}"
    return (
        f"On the held-out positives of {evaluation['users']:,} users"
        f" ({evaluation['queries']:,} queries, `{evaluation['query']}`),"
        f" ranked among {among} items; the intervals hold"
        f" {100 * evaluation['confidence']:.3g} % of bootstrap samples of the users:\n\n"
        + _table(header, rows)
        + (f"\n\n{evaluation['meaning']}" if evaluation.get("meaning") else "")
        + f"\n\n{verdict['sentence']}. {'; '.join(verdict['reasons'])}."
    )


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
