"""The ingestion of interactions by Beam: splits, counts, dead letters, and refusals."""

import json

import apache_beam as beam
import pyarrow.parquet as pq
import pytest

from recsys.config import CsvFormat, InteractionColumns, InteractionsConfig, ListOfEvents
from recsys.data.dead_letters import check_rejected
from recsys.data.example_files import read_split
from recsys.data.ingest.ingestion import InteractionSource, ingest_interactions
from recsys.data.ingest.tasks import LOCAL_RUNNER
from recsys.errors import RecsysError
from recsys.system.events import shown_events

pytestmark = pytest.mark.pipeline

DAY = 86_400
START = 1_700_006_400  # 2023-11-15 00:00 UTC
COLUMNS = InteractionColumns(user="user", item="item", timestamp="time")


def source(files, **more):
    config = InteractionsConfig(files=str(files), columns=COLUMNS, **more)
    return InteractionSource(interactions=config, eval_share=0.25)


def write(folder, name, rows, header="user,item,time"):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("\n".join([header, *rows]) + "\n")


def run(config, out):
    return ingest_interactions(
        config, str(out / "examples"), str(out / "letters"), beam.Pipeline(LOCAL_RUNNER)
    )


def events(out, split):
    tables = read_split(out / "examples" / f"Split-{split}", ["user_id", "item_id", "timestamp"])
    return sorted(tuple(row.values()) for table in tables for row in table.to_pylist())


def test_rows_are_split_by_time_and_all_are_accounted_for(tmp_path):
    days = [f"u{n},i{n},{START + n * DAY}" for n in range(8)]
    write(tmp_path / "in", "a.csv", [*days, "u1,i1", ",i1,1700000001", days[3]])
    write(tmp_path / "in", "b.csv", [days[0], "u9,i9,soon"])
    summary = run(source(tmp_path / "in" / "*.csv"), tmp_path)
    assert [summary[name] for name in ("read", "good", "rejected", "duplicates")] == [13, 8, 3, 2]
    assert summary["cut"] == START + 6 * DAY
    assert [summary["train"], summary["eval"]] == [6, 2]
    assert events(tmp_path, "train") == [(f"u{n}", f"i{n}", START + n * DAY) for n in range(6)]
    assert events(tmp_path, "eval") == [(f"u{n}", f"i{n}", START + n * DAY) for n in (6, 7)]
    letters = pq.read_table(tmp_path / "letters" / "dead_letters").to_pylist()
    assert sorted((one["file"].rsplit("/")[-1], one["line"], one["row"]) for one in letters) == [
        ("a.csv", 10, "u1,i1"),
        ("a.csv", 11, ",i1,1700000001"),
        ("b.csv", 3, "u9,i9,soon"),
    ]
    files = [str(tmp_path / "in" / name) for name in ("a.csv", "b.csv")]
    assert summary["read_by_file"] == dict(zip(files, (11, 2), strict=True))


def test_what_only_the_work_needed_is_gone(tmp_path):
    write(tmp_path / "in", "a.csv", [f"u,i,{START + n * DAY}" for n in range(3)])
    with pytest.raises(RecsysError):
        run(source(tmp_path / "in" / "none.csv"), tmp_path)
    assert list((tmp_path / "letters").iterdir()) == []
    run(source(tmp_path / "in" / "a.csv"), tmp_path)
    assert sorted(path.name for path in (tmp_path / "letters").iterdir()) == [
        "dead_letters",
        "summary.json",
    ]


def test_a_wrong_unit_is_refused_with_the_right_one(tmp_path):
    write(tmp_path / "in", "a.csv", [f"u,i,{(START + n * DAY) * 1000}" for n in range(9)])
    with pytest.raises(RecsysError) as caught:
        run(source(tmp_path / "in" / "a.csv"), tmp_path)
    assert caught.value.code == "R206"
    assert "Set data.interactions.timestamp_unit to milliseconds" in str(caught.value)
    again = run(source(tmp_path / "in" / "a.csv", timestamp_unit="milliseconds"), tmp_path / "b")
    assert again["good"] == 9


def test_times_in_another_format_are_refused_with_the_right_one(tmp_path):
    rows = [f"u,i,2024-01-{1 + n:02} 10:00:00 CET" for n in range(9)]
    write(tmp_path / "in", "a.csv", rows)
    format_ = "%Y-%m-%d %H:%M:%S %Z"
    with pytest.raises(RecsysError, match=f"R206.*timestamp_format to '{format_}'"):
        run(source(tmp_path / "in" / "a.csv", timestamp_unit="iso8601"), tmp_path)
    again = run(source(tmp_path / "in" / "a.csv", timestamp_format=format_), tmp_path / "b")
    assert again["good"] == 9


def test_text_in_another_encoding_is_refused_with_the_key_to_set(tmp_path):
    rows = [f"u,caf\xe9-{n},{START + n * DAY}" for n in range(9)]
    text = "\n".join(["user,item,time", *rows])
    (tmp_path / "a.csv").write_text(text, encoding="latin-1")
    with pytest.raises(RecsysError, match=r"R206.*set data\.interactions\.csv\.encoding"):
        run(source(tmp_path / "a.csv"), tmp_path)
    again = run(source(tmp_path / "a.csv", csv=CsvFormat(encoding="latin-1")), tmp_path / "b")
    assert again["good"] == 9


@pytest.mark.parametrize("threshold", [None, 2.0])
def test_ratings_without_a_threshold_are_remarked(tmp_path, threshold):
    rows = [f"u,i{n},{START + n * DAY},{n % 5}" for n in range(9)]
    write(tmp_path / "in", "a.csv", rows, "user,item,time,stars")
    rated = {"columns": COLUMNS.model_copy(update={"rating": "stars"})}
    rated["positive_at_least"] = threshold
    config = source(tmp_path / "in" / "a.csv")
    config = config.model_copy(
        update={"interactions": config.interactions.model_copy(update=rated)}
    )
    seen = []
    with shown_events(seen.append):
        summary = run(config, tmp_path)
    said = [remark for remark in summary.get("remarks", []) if "positive_at_least" in remark]
    assert said == [e["text"] for e in seen if "positive_at_least" in e["text"]]
    assert len(said) == (threshold is None)


@pytest.mark.parametrize(("n_high", "is_remarkable"), [(2, True), (3, False), (297, False)])
def test_a_threshold_that_few_rows_reach_is_left_to_the_gate_to_say(
    tmp_path, n_high, is_remarkable
):
    rows = [f"u{n % 9},i{n},{START + n * DAY},{int(n < n_high)}" for n in range(300)]
    write(tmp_path / "in", "a.csv", rows, "user,item,time,label")
    rated = {"columns": COLUMNS.model_copy(update={"rating": "label"}), "positive_at_least": 1.0}
    config = source(tmp_path / "in" / "a.csv")
    config = config.model_copy(
        update={"interactions": config.interactions.model_copy(update=rated)}
    )
    summary = run(config, tmp_path)
    said = summary.get("gate_remarks", [])
    assert said == summary.get("remarks", [])
    assert bool(said) == is_remarkable
    assert not said or said[0].startswith("2 of 300 good rows (0.67%) are positives by")
    assert check_rejected("interactions", tmp_path / "letters", 0.01) == said


def test_positives_of_one_day_are_refused(tmp_path):
    write(tmp_path / "in", "a.csv", [f"u,i{n},{START + n}" for n in range(9)])
    with pytest.raises(RecsysError, match="R207"):
        run(source(tmp_path / "in" / "a.csv"), tmp_path)


def test_all_letters_are_kept_and_two_of_a_reason_are_shown(tmp_path):
    good = [f"u,i,{START + n * DAY}" for n in range(2)]
    write(tmp_path / "in", "a.csv", [*good, *["u,i,never"] * 5000])
    summary = run(source(tmp_path / "in" / "a.csv"), tmp_path)
    assert summary["rejected"] == 5000
    (reason,) = summary["by_reason"]
    assert [one["line"] for one in summary["examples"][reason]] == [4, 5]
    stored = json.loads((tmp_path / "letters" / "summary.json").read_text())
    assert stored["by_reason"] == {reason: 5000}


def test_lists_of_events_are_accounted_for_event_by_event(tmp_path):
    rows = [
        {"s": n, "e": [{"a": k, "t": START + n * DAY} for k in (*range(n), 0)]} for n in range(9)
    ]
    rows += [{"s": 9, "e": []}, {"s": 10}, {"s": 11, "e": [{"a": 1, "t": "soon"}]}]
    (tmp_path / "f.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = InteractionColumns(user="s", item="e.a", timestamp="e.t")
    config = InteractionsConfig(
        files=str(tmp_path / "f.jsonl"), columns=columns, explode=ListOfEvents(column="e")
    )
    summary = run(InteractionSource(interactions=config, eval_share=0.25), tmp_path)
    counts = {name: summary[name] for name in ("read", "good", "rejected", "duplicates")}
    # Each session but the first has item 0 twice, at one moment.
    assert counts == {"read": 47, "good": 37, "rejected": 2, "duplicates": 8}
    assert summary["empty_lists"] == 1
    assert summary["by_reason"] == {"no list of events": 1, "timestamp is no time": 1}
    letters = pq.read_table(tmp_path / "letters" / "dead_letters").to_pylist()
    assert sorted(letter["line"] for letter in letters) == [11, 12]
