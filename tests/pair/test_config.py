"""The key `ranker` of a config, and the file of a pair."""

import pytest

from recsys.config import Config, PairStage, TrainStage, canonical_json, stage_of
from recsys.config.load import load_config, load_stage
from recsys.errors import ConfigError, RecsysError
from recsys.models.summary import SUMMARY, summary_text
from recsys.pair.config import ranker_stage, retriever_stage
from recsys.pair.folder import PAIR, RANKER, ranker_of, read_pair, write_pair

PAIR_CONFIG = """
name: pair
root: runs
data:
  interactions:
    files: events.csv
    columns: {user: u, item: i, timestamp: t}
    labels:
      like: {column: rating, at_least: 4}
      click: {column: clicked, at_least: 1}
    positive: click
  items:
    files: items.csv
    columns: {item: i}
    features: [{name: stock, column: stock, kind: category}]
ranker:
  model: {type: dcn_v2, dim: 8}
  labels: {like: 2.0, click: 1.0}
  score: "click * like ^ 0.5"
  only: {stock: ["1"]}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "pair.yaml"
    path.write_text(PAIR_CONFIG)
    return path


def test_the_ranker_has_its_labels_in_their_order_after_a_cache_key(file, tmp_path):
    config = load_config(file)
    (tmp_path / "stage.json").write_text(canonical_json(stage_of(config, PairStage)))
    stage = load_stage(tmp_path / "stage.json", PairStage)
    assert stage == stage_of(config, PairStage)
    model = ranker_stage(stage).model
    assert (model.task, model.dim, model.stage_one) == ("ranking", 8, True)
    assert model.labels == ("like", "click")
    assert model.label_weights == {"like": 2.0, "click": 1.0}
    assert ranker_stage(stage).train.loss.task == "ranking"
    assert config.bless.metric == "ndcg@10"
    assert Config.model_validate_json(canonical_json(config)) == config


def test_the_retriever_does_not_depend_on_the_ranker(file):
    without = load_config(file, ["ranker=null"])
    assert stage_of(load_config(file), TrainStage) == stage_of(without, TrainStage)
    assert without.bless.metric == "recall@10"


def test_with_shared_tables_the_retriever_comes_without_the_newest_events_first(file):
    keys = ["ranker.share_tables=true", "ranker.held_back=0.3", "model.dim=24", "warm_start={}"]
    config = load_config(file, [*keys, "train.validation={patience: 2, metric: mrr}"])
    first, second = retriever_stage(config), ranker_stage(stage_of(config, PairStage)).model
    held = first.train.validation
    assert (held.like, held.share, held.refit) == ("newest", 0.3, False)
    assert (held.patience, held.metric, first.warm_start) == (2, "mrr", None)
    assert (second.dim, second.shared_tables) == (24, ("users", "items"))
    assert ranker_stage(stage_of(load_config(file), PairStage)).model.shared_tables == ()
    own = load_config(file, keys[1:])
    assert retriever_stage(own) == stage_of(own, TrainStage)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("ranker.labels={buy: 1}", r"ranker\.labels must name labels of the data .*'buy'"),
        ("ranker.score=buy", r"ranker\.score must have a label \(like, click\)"),
        ("ranker.model.type=two_tower", "must be a model of the task ranking"),
        ("ranker.labels={score: 1}", "another name than score"),
        ("ranker.model.labels=[click]", "ranker.labels has them"),
        ("ranker.train.loss=bpr", "a loss of the model's task, ranking"),
        ("ranker.share_tables=true; data.split=last_out", "needs data.split: time"),
        ("ranker.only={colour: [red]}", r"features of items that have tokens \(stock\)"),
        ("task=ranking", "orders the candidates of a retriever"),
        ("ranker.depth=3", r"no key 'ranker\.depth'.*candidates"),
    ],
)
def test_a_ranker_that_does_not_fit_is_refused(file, change, message):
    with pytest.raises(ConfigError, match=message):
        load_config(file, change.split("; "))


def test_a_pair_file_is_read_as_written_and_damage_is_found(file, tmp_path):
    config, ranker = load_config(file).ranker, tmp_path / "model" / RANKER
    ranker.mkdir(parents=True)
    (ranker / SUMMARY).write_text(summary_text({"stage": {"plugins": []}}))
    assert ranker_of(tmp_path / "model") is None
    write_pair(ranker, config)
    assert ranker_of(tmp_path / "model") == ranker
    assert read_pair(ranker) == config
    text = (ranker / PAIR).read_text()
    (ranker / PAIR).write_text(text.replace("500", "501"))
    with pytest.raises(RecsysError, match="R310"):
        read_pair(ranker)
