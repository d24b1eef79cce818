"""The log of what was served: rows that the ingestion reads, bounded, and without delays."""

import json
import stat
import threading
import time

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")
pytest.importorskip("tensorflow", reason="needs the extra `serve`")
from ranking_bundle import LABELS, expected, write_ranking_bundle
from s3_server import proxied, s3, s3_address, unavailable
from serving import Running
from waiting import wait_for

from recsys.config import InteractionColumns, InteractionsConfig, LabelConfig
from recsys.data.config import read_event_feature
from recsys.data.forgotten import Forgotten
from recsys.data.interactions import interaction_columns, parse_interactions
from recsys.data.labels import merge_impressions
from recsys.data.served_log import log_files, log_folder, only_log_writer
from recsys.data.sources.pieces import read_all
from recsys.forget.files import Names, forget_in_served_logs
from recsys.serving import log_sender
from recsys.serving.label_scorer import RankedItems, RankQuery
from recsys.serving.opening import open_bundle
from recsys.serving.pool import ServerMetrics
from recsys.serving.served_log import ServedLog
from recsys.storage.bucket import Bucket
from recsys.storage.working_folder import local_folder

__all__ = ["s3", "s3_address"]
COLUMNS = InteractionColumns(
    user="who", item="what", timestamp="at", impression="shown", position="slot"
)
CONFIG = InteractionsConfig(
    files="none",
    columns=COLUMNS,
    timestamp_unit="milliseconds",
    labels={"click": LabelConfig(column="clicked", at_least=1.0)},
    features=tuple(
        read_event_feature({"name": name, "kind": kind, "column": name})
        for name, kind in (("device", "category"), ("price", "price"))
    ),
)


def opened(folder, days=30, mib=1, forget=None):
    return lambda metrics: ServedLog(folder, CONFIG, days, mib, metrics, forget)


def rows_of(folder):
    return [json.loads(x) for file in log_files(folder) for x in file.read_text().splitlines()]


def served(log, user, n=1, impression=None):
    query = RankQuery(user, [f"i{i}" for i in range(n)], context={"device": "phone"})
    scores = {label: np.full(n, 0.5, np.float32) for label in LABELS}
    ranked = RankedItems(np.arange(n), scores, True, np.ones(n, bool), {}, {})
    return log.add(query, ranked, 1, impression)


def counted(metrics, name):
    return float(metrics.text().decode().partition(f"\nrecsys_{name} ")[2].partition("\n")[0])


def test_served_items_and_later_labels_are_rows_that_the_ingestion_joins(tmp_path):
    bundle, folder = write_ranking_bundle(tmp_path / "1"), tmp_path / "served" / "m"
    kind, path, log = (lambda _: open_bundle(bundle)), "/v1/models/m:rank", opened(folder)
    items, price = ["i1", "i2", "i3"], [8.0, 16.0, None]
    with Running(versions=(1,), kind=kind, log=log) as running:
        body = {"user": "u1", "items": items, "context": {"device": "tv", "price": price}}
        answer = running.predict({**body, "k": 2}, path).json()
        own = running.predict({"user": "u2", "items": ["i4"], "impression": "mine"}, path).json()
        nobody = running.predict({"items": ["i4"]}, path).json()
        running.log.close()
    assert (own["impression"], "impression" in nobody) == ("mine", False)
    assert [item["id"] for item in answer["items"]] == ["i1", "i2"]
    [file] = log_files(folder)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    clicked = {"who": "u1", "what": "i2", "at": int((time.time() + 9) * 1000), "clicked": 1}
    clicked |= {"shown": answer["impression"], "slot": None, "device": None, "price": None}
    (tmp_path / "labels.jsonl").write_text(json.dumps(clicked) + "\n")
    config = CONFIG.model_copy(update={"files": (str(file), str(tmp_path / "labels.jsonl"))})
    tables = []
    for index, batch in read_all(config, "interactions", interaction_columns(config)):
        good, letters = parse_interactions(batch, config, 2**40, index)
        assert not len(letters)
        tables.append(pa.Table.from_batches([good]))
    merged, n_merged = merge_impressions(pa.concat_tables(tables))
    found = merged.select(["user_id", "item_id", "impression", "shown_at", "label:click",
                           "feature:device", "feature:price"]).to_pylist()  # fmt: skip
    assert n_merged == 1
    assert [[*row.values()] for row in found] == [
        ["u1", "i1", answer["impression"], 0, None, "tv", 8.0],
        ["u1", "i2", answer["impression"], 1, 1, "tv", 16.0],
        ["u2", "i4", "mine", 0, None, None, None],
    ]
    assert all(abs(t - time.time()) < 600 for t in merged["timestamp"].to_pylist())
    row = rows_of(folder)[1]
    right = expected("u1", ["i2"], "tv", 16.0)
    assert row["served_version"] == 1
    assert row["served_scores"] == {name: pytest.approx(x[0]) for name, x in right.items()}


def test_the_query_time_of_a_client_is_the_time_of_the_row(tmp_path):
    metrics = ServerMetrics()
    log = opened(tmp_path)(metrics)
    none = np.zeros(1, np.float32)
    ranked = RankedItems(np.zeros(1, int), {"click": none}, True, none > 0, {}, {})
    for at in ("2026-11-23T18:00:00Z", 1_795_456_800):
        log.add(RankQuery("u", ["i"], context={"at": at}), ranked, 1, None)
    log.close()
    assert [row["at"] for row in rows_of(tmp_path)] == [1_795_456_800_000] * 2


def test_a_full_queue_drops_requests_and_never_waits(tmp_path):
    metrics = ServerMetrics()
    log = opened(tmp_path)(metrics)
    with only_log_writer(tmp_path):  # The thread of the log waits.
        started = time.monotonic()
        kept = [served(log, "u") for _ in range(1000)]
        assert time.monotonic() - started < 2.0
    log.close()
    n_dropped = kept.count(None)
    assert 600 < n_dropped < 1000
    assert counted(metrics, "served_log_dropped_total") == n_dropped
    assert counted(metrics, "served_log_rows_total") == 1000 - n_dropped
    assert {row["shown"] for row in rows_of(tmp_path)} == {*kept} - {None}


def test_old_files_are_removed_by_age_and_size(tmp_path):
    (tmp_path / "2020-01-01-0001.jsonl").write_text("{}\n")
    log = opened(tmp_path)(ServerMetrics())
    for number in range(60):
        served(log, f"u{number}", n=500)
        wait_for(lambda: log._queue.empty())
    log.close()
    files = log_files(tmp_path)
    assert 5 < len(files) <= 16
    assert sum(file.stat().st_size for file in files) <= 2**20
    users = [row["who"] for row in rows_of(tmp_path)]
    assert users[-1] == "u59"
    assert "u0" not in users


def test_a_forgotten_user_leaves_the_log_while_it_is_written(tmp_path):
    folder, forget = tmp_path / "served" / "m", tmp_path / "forgotten.txt"
    metrics = ServerMetrics()
    log = opened(folder, forget=forget)(metrics)
    stop = threading.Event()

    def others():
        n = 0
        while not stop.is_set():
            n += served(log, "u2", n=3) is not None
            time.sleep(0.001)
        sent.append(n)

    sent = []
    thread = threading.Thread(target=others)
    thread.start()
    try:
        served(log, "u1", n=5)
        served(log, " u1 ", n=5)
        wait_for(lambda: any(row["who"] == " u1 " for row in rows_of(folder)))
        Forgotten.new().with_users(["u1"]).save(forget)
        assert forget_in_served_logs(tmp_path, CONFIG, Names(["u1"])) == 1
        served(log, "u1", n=5)  # The file of `data.forget` names the user.
        assert forget_in_served_logs(tmp_path, CONFIG, Names(["u1"])) == 0
    finally:
        stop.set()
        thread.join()
        log.close()
    rows = rows_of(folder)
    assert {row["who"] for row in rows} == {"u2"}
    assert len(rows) == 3 * sent[0]
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in log_files(folder))


def test_closed_files_go_to_the_bucket_of_the_root_also_after_a_failure_each_row_once(
    s3, s3_address, tmp_path, monkeypatch
):
    monkeypatch.setenv("RECSYS_CACHE", str(tmp_path))
    monkeypatch.setattr(log_sender, "_CHECK_S", 0.1)
    url, forget = f"{s3}/runs", tmp_path / "forgotten.txt"
    root, bucket = local_folder(url), Bucket(f"{url}/served/m")
    folder, sent = log_folder(root) / "m", []

    def serve(n_answers):
        log = ServedLog(folder, CONFIG, 30, 4, ServerMetrics(), forget, url)
        for _ in range(n_answers):
            sent.append(served(log, f"u{len(sent)}", n=500))
            wait_for(lambda: log._queue.empty())
        return log

    def objects():
        content = b"".join(bucket.read(entry.key)[0] for entry in bucket.list())
        return [json.loads(line) for line in content.splitlines()]

    with proxied(s3_address, unavailable) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        serve(9).close()
    assert len(log_files(folder)) > 2
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_address)
    log = serve(9)
    wait_for(lambda: len(log_files(folder)) == 1)
    assert objects()
    Forgotten.new().with_users(["u3", "u17"]).save(forget)
    assert forget_in_served_logs(root, CONFIG, Names(["u3"])) == 1
    log.close()  # It sends no row of a user in `data.forget`.
    assert not log_files(folder)
    rows = objects()
    assert {row["shown"] for row in rows} == {*sent} - {sent[3], sent[17]}
    assert len(rows) == 16 * 500
