"""Made-up labelled rows with statistics: their data folder, and the statistics by plain Python."""

import random
from typing import NamedTuple

import numpy as np
from split_worlds import write

from benchmarks.stores import save_catalogue
from recsys.config import InteractionsConfig, VocabulariesConfig, VocabularyConfig
from recsys.data.catalogue import Catalogue, FeatureBags
from recsys.data.dataset import Data
from recsys.data.event_features import load_event_features
from recsys.data.event_features.statistics import prior_mean
from recsys.data.example_files import read_split
from recsys.data.ingest.event_values import learn_event_features
from recsys.data.ingest.ingestion import InteractionSource, ingest_interactions
from recsys.data.ingest.statistics import write_statistics
from recsys.data.ingest.store_writer import build_store, make_vocabularies
from recsys.data.vocabulary import Vocabulary

DAY, START = 86_400, 19_783 * 86_400
LABELS = {
    "like": {"column": "rating", "at_least": 4},
    "seconds": {"column": "seconds", "given": "like"},
}
FEW = VocabulariesConfig(users=VocabularyConfig(min_count=6), items=VocabularyConfig(min_count=3))


def statistics(**options):
    """Returns the options of statistics of all kinds."""
    kinds = [{"kind": "count"}, {"kind": "count", "label": "like"}]
    kinds += [{"kind": "mean", "label": "like", "prior": 2.5}]
    kinds += [{"kind": "mean", "label": "seconds", "prior": 0}]
    last = [{"kind": "last", "label": label, "length": 3} for label in LABELS]
    by = [("user", kinds + last), ("item", kinds + last), (["user", "tags"], kinds)]
    made = [{**one, "by": of, **options} for of, ones in by for one in ones]
    return [{"name": f"s{n}", **one} for n, one in enumerate(made)]


class Row(NamedTuple):
    """A row of the files."""

    user: str
    item: str
    time: int
    like: float | None
    seconds: float | None


class World:
    """Labelled rows of few users, items and moments, some exactly `delay_s` apart.

    Labels depend on the time alone, so that the order of rows of the same second makes no
    difference. Ids with few positives before the cut have no row.
    """

    def __init__(self, seed, n=120, delay_s=0, users=9, items=7):
        chance = random.Random(seed)
        self.delay_s, rows, labels = delay_s, set[Row](), dict[int, tuple[float | None, ...]]()
        for _ in range(n):
            time = START + chance.randrange(12) * DAY // 2 + chance.choice([0, 0, 0, 1, 7])
            like = chance.choice([None, 0.0, 1.0, 1.0])
            seconds = chance.choice([None, 0.5, 30.0]) if like else None
            own = labels.setdefault(time, (like, seconds))
            rows.add(Row(f"u{chance.randrange(users)}", f"i{chance.randrange(items)}", time, *own))
        self.rows = sorted(rows, key=lambda row: row.time)
        self.tags = {f"i{n}": chance.sample([1, 2, 3], chance.randrange(4)) for n in range(items)}

    def write(self, folder, features, split="time", most=40):
        """Writes the data folder, in shards and ranges of about `most` rows, and opens it."""
        lines = [
            (x.user, x.item, x.time, "" if x.like is None else 5 * x.like,
             "" if x.seconds is None else x.seconds) for x in self.rows
        ]  # fmt: skip
        options = {
            "files": write(folder / "rows.csv", lines, "user,item,time,rating,seconds"),
            "columns": {"user": "user", "item": "item", "timestamp": "time"},
            "labels": LABELS,
            "positive": "like",
            "features": features,
            "label_after": f"{self.delay_s}s" if self.delay_s else None,
        }
        config = InteractionsConfig.model_validate(options, strict=False)
        source = InteractionSource(interactions=config, eval_share=0.3, split=split)
        data = folder / "data"
        examples, vocabulary = folder / "examples", data / "vocabulary"
        vocabulary.mkdir(parents=True)
        cut = ingest_interactions(source, examples, folder / "letters")["cut"]
        make_vocabularies(examples, cut, {}, None, vocabulary, FEW, source.rule)
        names = Vocabulary.load(vocabulary / "items.parquet").names_of_rows()
        bags = np.array([(self.tags.get(x, []) + [0] * 3)[:3] for x in names], np.int32)
        catalogue = Catalogue(names, names, (FeatureBags("tags", 4, bags),))
        save_catalogue(catalogue, data / "catalogue")
        learned = data / "event_features"
        learn_event_features(examples, config, None, learned)
        features = load_event_features(learned)
        build_store(
            examples, vocabulary, cut, data / "store", source.rule, features, self.delay_s, most
        )
        write_statistics(data, self.delay_s, most)
        opened = Data(data, verify=True)
        ids = ["user_id", "item_id", "timestamp"]
        tables = read_split(examples / "Split-train", ids)
        self.trained = {x for t in tables for x in zip(*t.to_pydict().values(), strict=True)}
        self.known = {*opened.items.ids_of_rows.drop_null().to_pylist()}
        return opened

    def numbers(self, one, user, item, now, only_trained, is_end=False):
        """Returns the numbers of a statistic for a user and an item at a time.

        Args:
            one: The statistic, with what it learned.
            user: Id of the user; None: without a state.
            item: Id of the item; None: without a row of its own.
            now: The time.
            only_trained: Whether only training rows count.
            is_end: Whether rows of this second count, too.
        """
        statistic, seen = one.feature, []
        delay = 0 if statistic.label is None else self.delay_s
        for token in self.tags.get(item, []) if isinstance(statistic.by, tuple) else [None]:
            for row in self.rows:
                is_own = row.item == item if statistic.by == "item" else row.user == user
                if not is_own:
                    continue
                value = 1.0 if statistic.label is None else getattr(row, statistic.label)
                has_token = row.item in self.known and token in self.tags[row.item]
                is_before = row.time < now or (is_end and row.time == now)
                is_known = value is not None and row.time + delay <= now
                is_known &= row[:3] in self.trained or not only_trained
                if (token is None or has_token) and is_before and is_known:
                    seen.append(value)
        if statistic.kind == "count":
            return [len(seen)]
        if statistic.kind == "mean":
            n = len(seen) + statistic.prior
            return [(sum(seen) + statistic.prior * prior_mean(one.learned)) / n if n else np.nan]
        return (seen[::-1] + [np.nan] * statistic.length)[: statistic.length]
