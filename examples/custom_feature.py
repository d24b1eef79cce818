"""A type of feature of one's own: the letter n-grams of a text, as fastText has them.

    python examples/custom_feature.py

Words that were never seen share n-grams with known ones: "colour" and "colours" differ in
two of eight. Bojanowski et al., "Enriching Word Vectors with Subword Information", 2017.
"""

import tempfile
from pathlib import Path

import tensorflow as tf
from pydantic import PositiveInt

import recsys
from recsys.config import DataConfig
from recsys.data.ingest import feature_graph


@recsys.register_feature("letters")
class LettersFeature(recsys.Feature):
    """Runs of `n` letters: `{name: grams, column: title, kind: letters, n: 3}`."""

    n: PositiveInt = 3
    """Letters of a run."""
    hash_buckets: PositiveInt = 1000
    """Rows that the runs are hashed into."""
    max_tokens: PositiveInt = 16
    """Runs kept of one item or user; the first ones."""

    @property
    def width(self) -> int:
        return self.max_tokens

    def table_rows(self, n_known: int = 0) -> int:
        return 1 + self.hash_buckets

    def tokens(self, values: tf.RaggedTensor) -> tf.RaggedTensor:
        words = feature_graph.words(values, r"[^\pL]+")
        letters = tf.strings.unicode_split(words, "UTF-8")
        runs = tf.strings.ngrams(letters, self.n, separator="").merge_dims(1, 2)
        return feature_graph.hashed_rows(runs, self.hash_buckets)


def main(folder: Path) -> recsys.Data:
    titles = ["Colour", "Colours", "Night"]
    rows = [f"{item},{title}" for item, title in enumerate(titles)]
    (folder / "items.csv").write_text("\n".join(["id,title", *rows]))
    days = [(user, (user + day) % 3, 1_600_000_000 + 86_400 * day)
            for user in range(9) for day in range(5)]  # fmt: skip
    events = [f"u{user},{item},{time}" for user, item, time in days]
    (folder / "events.csv").write_text("\n".join(["who,what,at", *events]))
    columns = {"user": "who", "item": "what", "timestamp": "at"}
    items = {
        "files": str(folder / "items.csv"),
        "columns": {"item": "id", "title": "title"},
        "features": ({"name": "grams", "column": "title", "kind": "letters", "n": 4},),
    }
    interactions = {"files": str(folder / "events.csv"), "columns": columns}
    config = DataConfig.model_validate({"interactions": interactions, "items": items})
    return recsys.ingest(config, folder / "data", progress=False)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        data = main(Path(temporary))
        print(data)
        print(data.catalogue.features[0].bags)
