"""Files with the quirks that exports have: what `recsys check` says, and what a run then reads."""

import re

import pytest
from checking import columns, found
from commands import run_main
from reading import read_interactions

from recsys.config.load import load_config
from recsys.data.ingest.spans import check_sources

NOW = 1_790_000_000
DAY = 86_400
START = 1_704_067_200


pytestmark = pytest.mark.usefixtures("here")


def rows_of(path):
    """Returns the good rows that a run reads with a written config."""
    data = load_config(path).data
    check_sources(data)
    return read_interactions(data.interactions, NOW).good


def write_events(file, rows, header="user_id,item_id,timestamp"):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{row}\n" for row in (header, *rows)), encoding="utf-8")


def events(n=200):
    return [(n * 7 % 40, n * 3 % 30, START + n * 3000) for n in range(n)]


# --- times


@pytest.mark.parametrize(
    ("text", "format_"),
    [
        ("2024-01-{:02} 10:00:00 CET", "%Y-%m-%d %H:%M:%S %Z"),
        ("Mon Jan {:02} 02:00:00 PDT 2024", "%a %b %d %H:%M:%S %Z %Y"),
    ],
)
def test_times_with_the_name_of_a_zone_are_found_and_read(here, capsys, text, format_):
    rows = [f"u{n % 9},i{n % 7},{text.format(1 + n % 28)}" for n in range(100)]
    write_events(here / "e.csv", rows)
    assert found(capsys, "e.csv")["timestamp_format"] == format_
    times = rows_of(here / "out.yaml")["timestamp"].to_pylist()
    assert times == [START + n % 28 * DAY + 9 * 3600 for n in range(100)]


# --- ids


def test_invisible_characters_split_no_id(here, capsys):
    space, mark = "\u200b", "\ufeff"
    rows = [
        f"u{u}{space * (n % 2)},{mark * (n % 3 == 0)}é{i},{t}"
        for n, (u, i, t) in enumerate(events())
    ]
    write_events(here / "e.csv", rows)
    result = found(capsys, "e.csv")
    assert {c["name"]: c["distinct"] for c in result["columns"]}["user_id"] == 40
    table = rows_of(here / "out.yaml")
    assert table["user_id"].to_pylist() == [f"u{u}" for u, _, _ in events()]
    assert table["item_id"].to_pylist() == [f"é{i}" for _, i, _ in events()]


# --- folders


def write_days(folder, n_days=6):
    """Writes events whose day is only in the names of folders, as Spark does; returns them."""
    rows = []
    for day in range(n_days):
        of_day = [(f"u{n % 9}", f"i{(n + day) % 7}") for n in range(20)]
        name = f"dt=2024-01-{1 + day:02}"
        write_events(
            folder / name / "part-0.csv", [f"{u},{i}" for u, i in of_day], "user_id,item_id"
        )
        rows += [(u, i, START + day * DAY) for u, i in of_day]
        (folder / name / "._part-0.csv.crc").write_bytes(b"crc\0")
    (folder / "_SUCCESS").touch()
    (folder / "_temporary").mkdir()
    (folder / "_temporary" / "part-1.csv").write_text("user_id,item_id\nghost,ghost\n")
    return rows


@pytest.mark.parametrize(
    "pattern", ["events/**/*", "events/*/*.csv", "events/dt={YYYY}-{MM}-{DD}/*"]
)
def test_a_day_in_the_name_of_a_folder_is_the_time(here, capsys, pattern):
    rows = write_days(here / "events")
    result = found(capsys, pattern)
    assert columns(result) == {"user": "user_id", "item": "item_id", "timestamp": "dt"}
    assert (result["split"], result["timestamp_unit"]) == ("time", "iso8601")
    table = rows_of(here / "out.yaml").select(["user_id", "item_id", "timestamp"])
    assert sorted(map(tuple, table.to_pandas().values.tolist())) == sorted(rows)


def test_a_column_of_the_file_comes_before_that_of_its_folder(here, capsys):
    for day in (1, 2):
        rows = [f"u{n % 9},i{n % 7},x{n},2024-01-0{day}T1{n % 10}:00:00Z" for n in range(20)]
        file = here / f"year=2024/month=1/day={day}/kind=buy%20now/a.csv"
        write_events(file, rows, "user_id,item_id,kind,ts")
    result = found(capsys, "year=*/*/*/*/*.csv")
    assert columns(result)["timestamp"] == "ts"
    kinds = {column["name"]: column["examples"] for column in result["columns"]}
    assert kinds["kind"] == ["x0", "x1", "x2"]
    assert kinds["date"] == ["2024-01-01", "2024-01-02"]
    found(capsys, "year=*/*/*/*/*.csv", "--map", "timestamp=date")
    assert set(rows_of(here / "out.yaml")["timestamp"].to_pylist()) == {START, START + DAY}


def test_a_folder_of_folders_is_reported_with_a_pattern_that_works(here, capsys):
    write_days(here / "events")
    for pattern in ("events", "events/*"):
        assert run_main("check", pattern) == 1
        cure = re.search(r"Name the files in it: (\S+)\.$", capsys.readouterr().err.strip())
        assert found(capsys, cure[1])["rows"] == 120


# --- items


def test_lists_as_text_are_categories_and_objects_are_left_out(here, capsys):
    write_events(here / "e.csv", [f"{u},{i},{t}" for u, i, t in events()])
    rows = [
        f"""{i},"['g{i % 3}', 'g{i % 5}']","[{i % 4}, {i % 7}]","[{{'id': {i % 4}}}]\""""
        for i in range(30)
    ]
    write_events(here / "i.csv", rows, "item_id,genres,tags,cast")
    result = found(capsys, "e.csv", "--items", "i.csv")
    kinds = {feature["name"]: feature["kind"] for feature in result["items"]["features"]}
    assert kinds == {"genres": "categories", "tags": "categories"}
    assert list(result["items"]["left_out"]) == ["cast"]


def test_ids_that_a_data_frame_made_floats_are_whole_again(here, capsys):
    rows = [f"{u}.0,{10**15 + i}.0,{t}" for u, i, t in events()]
    write_events(here / "e.csv", [*rows[:50], f",{10**15}.0,{START}", *rows[50:]])
    write_events(here / "i.csv", [f"{10**15 + i},T{i}" for i in range(30)], "item_id,title")
    result = found(capsys, "e.csv", "--items", "i.csv")
    assert result["items"]["interactions_known"] == 200
    table = rows_of(here / "out.yaml")
    assert table["user_id"].to_pylist() == [f"{u}" for u, _, _ in events()]
    assert table["item_id"].to_pylist() == [f"{10**15 + i}" for _, i, _ in events()]


def test_ids_keep_their_point_zero_where_some_are_versions(here, capsys):
    versions = ["1.0", "1.1", "2.0"]
    write_events(here / "e.csv", [f"u{u},{versions[u % 3]},{t}" for u, _, t in events()])
    found(capsys, "e.csv", "--map", "item=item_id")
    assert set(rows_of(here / "out.yaml")["item_id"].to_pylist()) == set(versions)


def test_items_without_an_id_of_the_interactions_end_with_an_error(here, capsys):
    write_events(here / "e.csv", [f"u{u},item-{i},{t}" for u, i, t in events()])
    write_events(here / "i.csv", [f"{i},T{i}" for i in range(30)], "item_id,title")
    [sentence] = found(capsys, "e.csv", "--items", "i.csv")["undecided"]
    assert "0.00%" in sentence
    assert "item-0" in sentence


def test_rows_of_an_item_that_differ_are_counted_and_told(here, capsys):
    write_events(here / "e.csv", [f"{u},{i},{t}" for u, i, t in events()])
    rows = [f"{i},T{i} v{v // 2},2024-01-0{1 + v}" for v in range(4) for i in range(30)]
    write_events(here / "i.csv", rows, "item_id,title,updated")
    result = found(capsys, "e.csv", "--items", "i.csv")
    assert (result["items"]["duplicates"], result["items"]["conflicts"]) == (90, 90)
    assert run_main("check", "e.csv", "--items", "i.csv", "--out", "out.yaml", "--force") == 0
    assert "such as updated" in " ".join(capsys.readouterr().out.split())


# --- encodings, and names of columns

WORDS = {
    "gb18030": ["商品号", "北京欢迎你", "用户评论", "推荐系统"],
    "big5": ["商品號碼", "蘋果手機", "台北歡迎您", "推薦系統"],
    "cp932": ["こんにちは", "商品の番号", "テレビ番組", "東京タワー"],
    "euc_jp": ["こんにちは", "商品の番号", "テレビ番組", "東京タワー"],
    "euc_kr": ["안녕하세요", "상품 번호", "영화 추천", "서울"],
    "cp1251": ["Привет мир", "Война и мир", "Анна Каренина", "фильм"],
    "koi8-r": ["Привет мир", "Война и мир", "Анна Каренина", "фильм"],
    "latin-1": ["café", "Amélie", "São Paulo", "Müller"],
    "cp1252": ["café’s", "Amélie", "São Paulo", "Müller"],
}


@pytest.mark.parametrize("encoding", WORDS)
def test_an_encoding_is_guessed_and_the_doubt_is_reported(here, capsys, encoding):
    words = WORDS[encoding]
    rows = [f"u{u},{words[u % 4]} {i},{t}" for u, i, t in events()]
    write_events(here / "e.csv", rows)
    (here / "e.csv").write_bytes((here / "e.csv").read_text("utf-8").encode(encoding))
    result = found(capsys, "e.csv", "--map", "item=item_id")
    assert result["csv"]["encoding"] == encoding
    [doubt] = [sentence for sentence in result["remarks"] if "encoding" in sentence]
    assert "data.interactions.csv.encoding" in doubt
    assert words[0].split()[0] in doubt
    ids = rows_of(here / "out.yaml")["item_id"].to_pylist()
    assert ids == [f"{words[u % 4]} {i}" for u, i, _ in events()]


@pytest.mark.parametrize(("name", "role"), [("user_id", "user"), ("timestamp", "timestamp")])
def test_a_name_that_two_columns_have_is_reported_instead_of_another_column(
    here, capsys, name, role
):
    header = ["user_id", "item_id", "timestamp", "page"]
    rows = [f"{u},{i},{t},{i * 3 % 50},{u}" for u, i, t in events()]
    write_events(here / "e.csv", rows, ",".join([*header, name]))
    result = found(capsys, "e.csv")
    [sentence] = [line for line in result["undecided"] if line.startswith(role)]
    assert f"several columns are called {name}" in sentence
    assert not any(f"{role}=" in word for word in (result["try"] or "").split())
