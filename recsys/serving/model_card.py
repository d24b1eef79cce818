"""The bundle's MODEL_CARD.md: what it is, how good it is, where it ends."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from recsys.config import Config


def model_card(
    config: Config,
    counts: Mapping[str, int],
    training: Mapping[str, Any],
    evaluation: Mapping[str, Any] | None,
) -> str:
    """Returns the text of the card, with Hugging Face's YAML header.

    Args:
        config: The config of the run.
        counts: How many of what the bundle holds, by name.
        training: The trainer's `training.json`.
        evaluation: The evaluator's `evaluation.json`, if there is one.
    """
    parts = [
        _header(config, evaluation),
        f"# {config.name}",
        "A two-tower retrieval model: one tower embeds a user with the newest items of the"
        " user's history, the other embeds an item with its features; the score is their"
        " cosine divided by the temperature. The bundle is a TensorFlow SavedModel that takes"
        " raw ids and needs nothing but TensorFlow.",
        "## What is in it",
        _table(("what", "how many"), [(name, f"{n:,}") for name, n in counts.items()]),
        "## Training",
        _training(config, training),
        "## Evaluation",
        _evaluation(evaluation),
        "## Use",
        _USE.strip(),
        _table(("signature", "takes", "gives"), _SIGNATURES),
        _CONVENTIONS,
        "## Limits",
        _LIMITS,
        "## Config",
        f"```json\n{config.model_dump_json(indent=1)}\n```",
    ]
    return "\n\n".join(parts) + "\n"


_USE = """```python
import tensorflow as tf

model = tf.saved_model.load("path/of/this/folder")
answer = model.signatures["recommend"](
    user_id=tf.constant(["42"]),
    history=tf.constant([[""]]),         # padding only: the stored history
    exclude_seen=tf.constant([True]),
)
answer["candidate_ids"], answer["scores"], answer["known"]
```
"""

_SIGNATURES = [
    ("recommend", "user_id, history, exclude_seen", "candidate_ids, scores [b, k], known [b]"),
    ("serving_default", "examples: serialized tf.Examples, see below", "the same"),
    ("embed_query", "user_id, history", "embedding [b, dim]"),
    ("embed_candidate", "item_id, and raw item columns if listed below", "embedding [b, dim]"),
    ("stored_history", "user_id", "item_ids [b, longest], known [b]"),
]

_CONVENTIONS = """`history` [b, any] holds item ids, the newest first, padded with the empty string.
A row of nothing but padding stands for the stored history; any other row replaces it.
Where fewer than k items remain the rest of `candidate_ids` is empty. The features of a
tf.Example are `user_id` (one text), `history` (texts; may be missing) and `exclude_seen` (one integer; 1 where it is missing).

`embed_candidate` takes raw item columns where the Transform graph is inside (`item_features` in
`manifest.json` lists them). Where all of an item's are empty, its features are those of the
catalogue."""

_LIMITS = """- It ranks items by what users did in the training data, and repeats the data's biases,
  that for popular items among them.
- A user without a training interaction is served from the history alone, one without both gets
  the same items as every other such user (`known` is false).
- An item that came after training is no candidate until the next run; `embed_candidate` embeds
  it from its features.
- Histories are those of the data that it was made from; newer ones must be sent along.
- The evaluation looks back at recorded behaviour; it is no measurement of what people do when
  they see the recommendations."""


def _header(config: Config, evaluation: Mapping[str, Any] | None) -> str:
    # JSON is YAML, and quotes whatever text a name may hold.
    fields: dict[str, Any] = {
        "library_name": "tensorflow",
        "tags": ["recommendation", "retrieval", "two-tower", "keras"],
    }
    if evaluation:
        metrics = [{"type": m, "name": m, "value": v} for m, v in evaluation["metrics"].items()]
        result = {
            "task": {"type": "retrieval", "name": "Candidate retrieval"},
            "dataset": {"type": config.name, "name": config.name},
            "metrics": metrics,
        }
        fields["model-index"] = [{"name": config.name, "results": [result]}]
    lines = "\n".join(f"{key}: {json.dumps(value)}" for key, value in fields.items())
    return f"---\n{lines}\n---"


def _training(config: Config, training: Mapping[str, Any]) -> str:
    sources = config.data.interactions.files, config.data.items.files
    files = " and ".join(f"`{path.rsplit('/', 1)[-1]}`" for path in sources)
    least = config.data.interactions.positive_at_least
    rule = "every interaction" if least is None else f"ratings of at least {least:g}"
    return (
        f"Data: {files}; positives are {rule}. The newest {config.data.eval_share:.0%} of them,"
        f" from one UTC midnight on, were held out. Trained with an in-batch sampled softmax with"
        f" logQ correction: {training.get('steps', 0):,} steps over"
        f" {training.get('examples', 0):,} examples on {training.get('devices', 1)}"
        f" {training.get('platform', '')} device(s)."
    )


def _evaluation(evaluation: Mapping[str, Any] | None) -> str:
    if not evaluation:
        return "The bundle was made without an evaluation."
    popularity = evaluation.get("baselines", {}).get("popularity", {})
    rows = [
        (name, f"{value:.4f}", f"{popularity[name]:.4f}" if name in popularity else "–")
        for name, value in evaluation["metrics"].items()
    ]
    verdict = evaluation.get("verdict", {})
    decision = "Blessed" if verdict.get("blessed") else "Not blessed"
    return (
        f"On held-out positives of {evaluation['users']:,} users"
        f" ({evaluation['queries']:,} queries, `{evaluation['query']}`),"
        f" ranked among all {evaluation['candidates']:,} items:\n\n"
        + _table(("metric", "model", "popularity"), rows)
        + f"\n\n{decision}: {'; '.join(verdict.get('reasons', [])) or 'no reasons given'}."
    )


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
