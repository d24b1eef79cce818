"""The config: what is accepted, what is refused and with which words."""

import contextlib
import json
import os
import re
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from places import ROOT

from recsys.config import Config, EvaluateConfig, canonical_json
from recsys.config import load as config_file
from recsys.config.load import default_config_path, load_config
from recsys.errors import ConfigError
from recsys.models.config import AutoConfig, TwoTowerConfig
from recsys.registry import choice_of

SMALL = """
name: small
root: runs
data:
  interactions:
    files: events/*.csv
    columns: {user: u, item: i, timestamp: t}
  items:
    files: items.csv
    columns: {item: i, title: name}
"""


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def refusal(path, *overrides):
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    assert caught.value.exit_code == 2
    return caught.value


def test_the_shortest_config_has_every_default(small):
    config = load_config(small)
    assert config.model == AutoConfig(keep=(), own=())
    assert config.train.batch_size == 256
    assert config.bless.metric == "recall@10"
    assert config.data.items.features == ()


def test_a_key_that_the_data_choose_says_how_to_name_it(small):
    with pytest.raises(ConfigError, match=r"R105.*'model\.pooling'.*model\.type=two_tower"):
        load_config(small, ["model={type: auto}", "model.pooling=attention"])
    config = load_config(small, ["model={type: auto}", "model.type=two_tower", "model.dim=8"])
    assert config.model == TwoTowerConfig(dim=8)


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.name)
def test_every_committed_config_loads(path):
    load_config(path)


def test_the_default_config_reads_the_shipped_data():
    config = load_config(default_config_path())
    assert Path(config.data.interactions.files).is_file()
    assert Path(config.data.items.files).is_file()


def test_paths_of_a_file_start_at_the_file_and_those_of_an_override_here(
    small, tmp_path, monkeypatch
):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    config = load_config(small, ["data.items.files=a.csv"])
    assert config.root == str(tmp_path / "runs")
    assert config.data.interactions.files == str(tmp_path / "events/*.csv")
    assert config.data.items.files == str(here / "a.csv")


def test_a_path_may_start_at_home(small, monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    assert load_config(small, ["root=~/runs"]).root == "/home/ada/runs"


@pytest.mark.parametrize(
    ("override", "keys", "value"),
    [
        ("train.epochs=3", ("train", "epochs"), 3),
        ("model.temperature=0.5", ("model", "temperature"), 0.5),
        ("model.widths=[64, 32]", ("model", "widths"), (64, 32)),
        ("train={epochs: 2}", ("train", "epochs"), 2),
        ("data.eval_share=0.5", ("data", "eval_share"), 0.5),
        ("data.gate.schema_dir=null", ("data", "gate", "schema_dir"), None),
        ("beam.args=['--a=b']", ("beam", "args"), ("--a=b",)),
        ('report_users=["1"]', ("report_users",), ("1",)),
    ],
)
def test_an_override_sets_a_key(small, override, keys, value):
    found = load_config(small, [override])
    for key in keys:
        found = getattr(found, key)
    assert found == value


def test_the_last_override_of_a_key_wins(small):
    assert load_config(small, ["train.epochs=3", "train.epochs=5"]).train.epochs == 5


def test_overrides_of_one_part_leave_its_other_keys_alone(small):
    train = load_config(small, ["train.epochs=3", "train.seed=9"]).train
    assert (train.epochs, train.seed, train.batch_size) == (3, 9, 256)


def test_keys_of_a_map_are_added_and_an_empty_map_empties(small):
    small.write_text(small.read_text() + "bless: {at_least: 0.2, over: {popularity: 2.0}}\n")
    bless = load_config(small, ["bless={over_blessed: 0.5}"]).bless
    assert (bless.at_least, bless.over_blessed, dict(bless.over)) == (0.2, 0.5, {"popularity": 2.0})
    assert load_config(small, ["bless.over={}"]).bless.over == {}
    assert load_config(small, ["bless={over: {}}"]).bless.over == {}
    assert load_config(small, ["bless={}"]).bless.at_least == 0.0


@pytest.mark.parametrize(
    "override",
    ["epochs", "=3", "train..epochs=3", "train.epochs.=3", ".train=3", "a b=3", "train.epochs=[1"],
)
def test_a_malformed_override_is_refused(small, override):
    assert refusal(small, override).code == "R104"


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("", "R102", "map of keys"),
        ("- a\n- b\n", "R102", "map of keys"),
        ("just words\n", "R102", "map of keys"),
        ("name: [1\n", "R102", "line 2, column 1"),
        ("name: 'x\n", "R102", "must be YAML"),
        ("train:\n\tepochs: 3\n", "R102", "line 2, column 1"),
        ("a: b: c\n", "R102", "line 1, column 5"),
        ("name: a\nname: b\n", "R102", "duplicate key 'name'"),
        ("name: !!python/object:os.system x\n", "R102", "must be YAML"),
        ("name: 2024-01-01\n", "R102", "quote dates"),
        ("&a name: *b\n", "R102", "must be YAML"),
    ],
    ids=[
        "empty", "list", "text", "open-list", "open-quote", "tab", "two-colons", "twice",
        "python-tag", "date", "unknown-alias",
    ],
)  # fmt: skip
def test_yaml_that_is_not_a_map_is_refused(tmp_path, text, code, words):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    error = refusal(path)
    assert error.code == code
    assert words in str(error)


def test_paths_of_a_list_are_anchored_and_addresses_stay(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(
        SMALL.replace("events/*.csv", "[a.csv, ../b/*.csv, 'gs://bucket/c.csv', /d.csv]")
    )
    files = load_config(path).data.interactions.files
    outside = str(tmp_path.parent / "b" / "*.csv")
    assert files == (str(tmp_path / "a.csv"), outside, "gs://bucket/c.csv", "/d.csv")


def test_a_missing_key_is_named(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(SMALL.replace("{item: i, title: name}", "{title: name}"))
    error = refusal(path)
    assert error.code == "R106"
    assert "'data.items.columns.item'" in str(error)


@pytest.mark.parametrize(
    "override",
    [
        "train.epochs='3'",
        "train.epochs=3.5",
        "train.epochs=0",
        "train.epochs=true",
        "train.epochs=null",
        "train.seed=-1",
        "train.seed=2147483648",
        "model.temperature=0",
        "model.id_dropout=1.0",
        "model.widths=64",
        "data.eval_share=0",
        "data.eval_share=1",
        "data.gate.max_rejected_share=1.1",
        "evaluate.query=sometimes",
        "name=Upper",
        "name=a/b",
        "name=3",
        "report_users=[1]",
        "train=[]",
    ],
)
def test_a_wrong_value_is_refused_and_its_key_named(small, override):
    error = refusal(small, override)
    assert error.code == "R107"
    assert override.partition("=")[0] in str(error)


SCHEMA = Config.model_json_schema()


def number_keys(node=SCHEMA, path=()):
    """Yields the dotted path of every key that takes a float."""
    for name, value in node.get("properties", {}).items():
        for kind in (value, *value.get("anyOf", ())):
            if kind.get("type") == "number":
                yield ".".join((*path, name))
            part = kind
            if "$ref" in kind:
                part = SCHEMA["$defs"][kind["$ref"].rpartition("/")[2]]
            if not {"type", "kind"} & set(kind.get("required", ())):  # Else another's options.
                yield from number_keys(part, (*path, name))


@pytest.mark.parametrize("key", sorted(set(number_keys())))
def test_no_number_of_the_config_may_be_infinite_or_nan(small, key):
    for value in (".inf", "-.inf", ".nan", "1e999"):
        ranker = ["ranker={model: dcn_v2, labels: {like: 1}}"] if "ranker." in key else []
        error = refusal(small, *ranker, f"{key}={value}")
        assert error.code == "R107"
        assert key in str(error)


def test_metric_names_are_those_of_every_k():
    names = EvaluateConfig(k=(5, 20)).deciding_keys
    assert names[:4] == ["recall@5", "recall@20", "precision@5", "precision@20"]
    assert names[-4:] == ["map@5", "map@20", "mrr", "auc"]


@pytest.mark.parametrize(
    ("override", "code", "words"),
    [
        ("train.batchsize=3", "R105", "Did you mean 'batch_size'?"),
        (
            "data.items.features=[{name: a, column: b, kind: words, max_token: 3}]",
            "R105",
            "Did you mean 'max_tokens'?",
        ),
        ("data.interactions.positive_at_least=4", "R107", "positive_at_least needs columns."),
        ("data.interactions.positive_events=[buy]", "R107", "positive_events needs columns."),
        ("bless.metric=recall@11", "R107", "recall@10, recall@50, recall@100, precision@10"),
        ("data.items.features={genre: {kind: words}}", "R107", "must be a list, such as [{name:"),
        ("evaluate.k=10", "R107", "'evaluate.k': must be a list, such as [a, b]"),
    ],
)
def test_a_key_that_does_not_fit_is_refused_with_what_does(small, override, code, words):
    error = refusal(small, override)
    assert error.code == code
    assert words in str(error)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["evaluate.baselines=[ials]"], "must name baselines in evaluate.baselines"),
        (["bless.over={itemknn: 1.0}"], "bless.over"),
        (["bless.at_least=1.5"], "bless.at_least"),
        (["bless.rules=[{metric: recall@10, at_least: 0.9}]"], "must have one rule for recall@10"),
        (
            ["bless.rules=[{metric: mrr, slice: head}, {metric: mrr, slice: head}]"],
            "of the slice 'head'",
        ),
        (["evaluate.slices=[colour]"], "evaluate.slices must be features"),
        (["evaluate.k=[]"], "evaluate.k"),
        (["evaluate.k=[10, 10, 50, 100]"], "evaluate.k must not repeat values"),
    ],
)
def test_rules_that_cannot_be_judged_are_refused(small, overrides, words):
    error = refusal(small, *overrides)
    assert error.code == "R107"
    assert words in str(error)


def test_several_problems_are_counted(small):
    text = str(refusal(small, "train.epochs=0", "train.seed=-1"))
    assert "(also train.seed: must be greater than or equal to 0)" in text
    many = [f"train.unknown_{k}=1" for k in range(8)]
    text = str(refusal(small, "train.epochs=0", *many))
    assert "train.unknown_0: unknown key" in text
    assert "and 5 more problems" in text


def test_a_problem_of_a_union_is_named_by_the_path_in_the_config(small):
    text = str(refusal(small, "data.interactions.files={}"))
    assert "'data.interactions.files': " in text
    assert "tuple[" not in text


def _merge_bomb():
    lines = ["a0: &a0 {x: 1}"]
    for k in range(1, 40):
        lines.append(f"a{k}: &a{k}\n  <<: [{', '.join([f'*a{k - 1}'] * 9)}]\n  k{k}: 1")
    return "\n".join(lines) + "\n"


def _named(name):
    return SMALL.replace("name: small", f"name: {name}")


def _alias_bomb():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]" for k in range(1, 40)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (_alias_bomb(), "R102", "aliases expand to more than"),
        (_merge_bomb(), "R102", "aliases expand to more than"),
        ("a: &a [*a]\n", "R102", "line 1, column 4"),
        ("name: x\nroot: 2024-99-99\n", "R102", "line 2, column 7"),
        ("name: !!int abc\n", "R102", "line 1, column 7"),
        ("name: !!float abc\n", "R102", "'abc' is not a valid float"),
        ("name: !!bool abc\n", "R102", "'abc' is not a valid bool"),
        ("name: !!timestamp abc\n", "R102", "'abc' is not a valid timestamp"),
        ("name: !!binary abc\n", "R102", "base64"),
        ("name: " + "9" * 5000 + "\n", "R102", "too long"),
        ("name: 1" + ":1" * 5000 + "\n", "R102", "too long"),
        (_named("1e5-run"), "R107", "must match pattern"),
        ("a: " + "[" * 500 + "]" * 500 + "\n", "R102", "nested more than 50 levels deep"),
        ("a: " + "{b: " * 500 + "\n", "R102", "nested more than 50 levels deep"),
        ("- " * 5000 + "\n", "R102", "nested more than 50 levels deep"),
        ("name: \x1b[31mred\n", "R102", r"line 1, column 7"),
        ('name: "\\ud800"\n', "R102", "half a surrogate pair"),
        ("name: !!set {a, b}\n", "R102", "is a set"),
        ("name: !!map abc\n", "R102", "line 1, column 7"),
        ("name: !!map [a]\n", "R102", "it is not a map"),
        ("# " + "x" * (3 << 20) + "\nname: x\n", "R102", "characters"),
    ],
)
def test_hostile_yaml_is_one_sentence_with_its_place(tmp_path, content, code, words):
    path = tmp_path / "config.yaml"
    path.write_text(content)
    began = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert time.monotonic() - began < 20
    assert caught.value.code == code
    assert words in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("value", ["2024-99-99", "!!int x", "[" * 500, "&a [*a]", "\x1b[31m"])
def test_a_hostile_override_is_one_sentence(small, value):
    error = refusal(small, f"name={value}")
    assert error.code == "R104"
    assert str(error).isprintable()


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "missing", "binary"])
def test_a_config_must_be_a_file(tmp_path, kind):
    path = tmp_path / "config.yaml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "binary":
        path.write_bytes(b"\xff\xfe\x00name")
    elif kind == "folder":
        path.mkdir()
    with pytest.raises(ConfigError, match="R101"):
        load_config(path)


def test_a_config_cannot_be_changed(small):
    with pytest.raises(Exception, match="frozen"):
        load_config(small).train.epochs = 3  # type: ignore[misc]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(
    key=st.sampled_from(["train", "model.dim", "data.items", "bless.metric", "report_users", "x"]),
    value=json_values,
)
def test_any_value_of_any_key_loads_or_is_refused(tmp_path_factory, key, value):
    path = tmp_path_factory.getbasetemp() / "property.yaml"
    path.write_text(SMALL)
    # Anything but these two ends of it is a traceback for the user, and fails here.
    with contextlib.suppress(ConfigError):
        assert isinstance(load_config(path, [f"{key}={json.dumps(value)}"]), Config)


nested = st.recursive(
    st.integers(),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
maps = st.dictionaries(st.sampled_from("abc"), nested, max_size=3)


def leaves(tree, path=()):
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from leaves(value, (*path, key))
    elif not isinstance(tree, dict):
        yield path, tree


@given(maps, maps)
def test_a_merge_takes_every_value_of_the_change(raw, changed):
    merged = json.loads(json.dumps(raw))
    config_file._merge(merged, changed)
    assert set(leaves(changed)) <= set(leaves(merged))
    assert {path for path, _ in leaves(merged)} <= {
        path for tree in (raw, changed) for path, _ in leaves(tree)
    }


def test_one_meaning_has_one_canonical_text(tmp_path, small):
    other = tmp_path / "other.yaml"
    raw = yaml.safe_load(SMALL)
    other.write_text(yaml.safe_dump({key: raw[key] for key in reversed(raw)}))
    assert canonical_json(load_config(small)) == canonical_json(load_config(other))


def test_the_canonical_text_is_a_config_file_again(small, tmp_path):
    config = load_config(small, ["train.epochs=3"])
    again = tmp_path / "elsewhere" / "config.yaml"
    again.parent.mkdir()
    again.write_text(canonical_json(config))
    assert load_config(again) == config


def test_the_committed_schema_is_that_of_the_code():
    assert json.loads((ROOT / "configs" / "schema.json").read_text()) == Config.model_json_schema()


def parts(kind=Config, path=()):
    """Yields the dotted path and the field of every key of the config."""
    for name, field in kind.model_fields.items():
        yield ".".join((*path, name)), field
        part = config_file.part_of(field)
        if part is not None:
            yield from parts(part, (*path, name))


def test_every_key_says_what_it_is():
    for path, field in parts():
        assert field.description, path


def rows_of_the_page():
    """Yields a line of docs/config.md for each key, as the code has it.

    Keys that several parts share are listed once.
    """
    seen = set()
    for path, field in parts():
        if not is_leaf(field):
            continue
        default = "required" if field.is_required() else f"`{default_text(field)}`"
        text = f"{default} | {' '.join(field.description.split())} |"
        alike = (
            re.sub(r"^(ranker|data\.(interactions|items|users|vocabulary\.\w+))\.", "", path),
            text,
        )
        if alike not in seen:
            yield f"| `{path}` | {text}"
        seen.add(alike)


def is_leaf(field):
    return config_file.part_of(field) is None or isinstance(field.default, tuple)


def default_text(field):
    choice = choice_of(field)
    is_list = isinstance(field.default, tuple)
    default = choice.write(field.default) if choice and not is_list else field.default
    return json.dumps(default).replace("|", "\\|")


def test_the_page_lists_every_key_with_its_default_and_no_other():
    page = (ROOT / "docs" / "config.md").read_text()
    rows = re.findall(r"^\| `[\w.]+` \|.*$", page, flags=re.MULTILINE)
    assert sorted(rows) == sorted(rows_of_the_page())
