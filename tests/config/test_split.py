"""Splits and orders that a config may name, and those that it can't have."""

import pytest

from recsys.config.load import load_config
from recsys.errors import ConfigError

PLAIN = """
name: t
root: runs
data:
  interactions:
    files: clicks.csv
    columns: {user: u, item: i}
"""
TIMED = PLAIN.replace("item: i", "item: i, timestamp: t")


def load(tmp_path, text, *overrides):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return load_config(path, overrides)


@pytest.mark.parametrize(
    ("overrides", "order"),
    [
        (["data.split=random"], "none"),
        (["data.split=last_out", "data.interactions.order=file"], "file"),
        (["data.split=last_out", "data.interactions.columns.timestamp=t"], "time"),
        (["data.split=given", "data.interactions.columns.part=p"], "none"),
        (["data.split=given", "data.interactions.eval_files=test.csv"], "none"),
        (["data.interactions.columns.timestamp=t"], "time"),
    ],
)
def test_data_with_and_without_times_are_taken(tmp_path, overrides, order):
    config = load(tmp_path, PLAIN, *overrides)
    assert config.data.interactions.ordered_by == order
    again = type(config).model_validate_json(config.model_dump_json())
    assert again == config


@pytest.mark.parametrize(
    ("text", "overrides", "sentence"),
    [
        (PLAIN, [], "set data.split to last_out, random or given"),
        (TIMED, ["data.interactions.columns.item=u"], "user and item must be different columns"),
        (PLAIN, ["data.split=last_out"], "interactions.order to file"),
        (PLAIN, ["data.split=given"], "columns.part or interactions.eval_files"),
        (PLAIN, ["data.split=random", "data.interactions.columns.part=p"], "split: given"),
        (TIMED, ["data.interactions.order=file"], "remove one of them"),
        (
            PLAIN,
            [
                "data.split=given",
                "data.interactions.columns.part=p",
                "data.interactions.eval_parts=[train]",
            ],
            "they share 'train'",
        ),
        (
            PLAIN,
            [
                "data.split=given",
                "data.interactions.columns.part=p",
                "data.interactions.valid_parts=[test]",
            ],
            "they share 'test'",
        ),
        (PLAIN, ["data.split=random", "data.interactions.valid_parts=[v]"], "needs columns.part"),
        (PLAIN, ["data.split=random", "data.interactions.valid_files=v"], "needs eval_files"),
        (TIMED, ["data.split=random", "data.interactions.files=a/{SPAN}.csv"], "with spans"),
        (
            PLAIN,
            ["data.split=random", "data.vocabulary.items.evict_after_days=3"],
            "vocabulary.items.evict_after_days needs interactions.columns.timestamp",
        ),
        (TIMED, ["data.split=last_out", "warm_start={}"], "warm_start needs data.split: time"),
        (PLAIN, ["data.split=random", "evaluate.query=each_moment"], "set at_cut"),
        (PLAIN, ["data.split=random", "model.history_of=past"], "set others"),
    ],
)
def test_what_a_split_cannot_have_is_refused_with_the_cure(tmp_path, text, overrides, sentence):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, *overrides)
    assert caught.value.code == "R107"
    assert sentence in str(caught.value)
