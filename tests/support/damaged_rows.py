"""Rows with every kind of damage, and the rules written down again in plain Python.

The tests and the search of tests/project/test_fuzz.py hold the readers to it.
"""

import csv
import io
import json
import random
import unicodedata
from collections import Counter
from pathlib import Path

from recsys.config import InteractionColumns
from recsys.data import interactions as rules
from recsys.data.dead_letters import NOT_TEXT
from recsys.data.sources.csv_source import OPEN_QUOTE, WRONG_WIDTH
from recsys.data.sources.jsonl_source import NOT_JSON

NOW = 1_700_000_000
COLUMNS = InteractionColumns(user="u", item="i", timestamp="t", rating="r", weight="w")
NESTED = COLUMNS.model_copy(update={"item": "o.i", "timestamp": "o.t"})
"""The columns of `write_jsonl`."""

_IDS = [
    "7", "007", "7.0", "a b", " padded ", "", "   ", "😀", "e\u0301", "é", "ﬁ", "x" * 1024,
    "y" * 1025, "../../etc/passwd", "<script>alert(1)</script>", "=1+1", "\x1b[31mred\x1b[0m",
    "a,b", 'a"b', "two\nlines", "NULL", "nan", "-1", "12345678901234567890", "日本",
    "\u3000wide\u3000", "\x1ftrimmed", "line\rfeed",
]  # fmt: skip
_TIMES = [
    "1600000000", "1600000001", " 1600000002 ", "1600000003.0", "1600000004.75", "1.6e9",
    "+1600000005", "", "yesterday", "0", "-5", "31535999", "31536000", str(NOW), str(NOW + 1),
    "1600000000000",
    "nan", "0x5f5e1000", "2020-09-13", "99999999999999999999999", "1_600_000_000",
]  # fmt: skip
_NUMBERS = ["1", "4.5", "0", "-0.0", "-1", "", "nan", "inf", "1e999", "five", " 3 ", ".5", "1e-3"]


def generate(n_rows, seed):
    """Returns rows of texts, a tenth of them odd in some field, some of them twice."""
    chance = random.Random(seed)
    rows = []
    for _ in range(n_rows):
        if rows and chance.random() < 0.05:
            rows.append(chance.choice(rows[-50:]))
            continue
        row = [
            str(chance.randrange(500)), str(chance.randrange(300)),
            str(chance.randrange(1_500_000_000, 1_600_000_000)),
            chance.choice(["1", "2.5", "5"]), "1",
        ]  # fmt: skip
        if chance.random() < 0.1:
            at = chance.randrange(5)
            row[at] = chance.choice([_IDS, _IDS, _TIMES, _NUMBERS, _NUMBERS][at])
        rows.append(row)
    return rows


# --- the rules, one row at a time


def number(text):
    try:
        if "_" in text or "inf" in text.lower() or "nan" in text.lower():
            return None
        value = float(text.strip())
    except ValueError:
        return None
    return value if abs(value) < 3.4e38 else None


def id_of(text):
    return unicodedata.normalize("NFC", text.strip())


def reason(row):
    """Returns the first rule that a row of five texts breaks; nothing if it is good."""
    user, item, time, rating, weight = row
    user, item = id_of(user), id_of(item)
    seconds = number(time)
    broken = [
        (not user, rules.NO_USER),
        (not item, rules.NO_ITEM),
        (len(user.encode()) > 1024 or "\0" in user, rules.BAD_USER),
        (len(item.encode()) > 1024 or "\0" in item, rules.BAD_ITEM),
        (seconds is None or seconds > 2**53, rules.NO_TIME),
        (seconds is not None and not 31_536_000 <= seconds // 1 <= NOW, rules.OUT_OF_TIME),
        (number(rating) is None, rules.NO_RATING),
        (number(weight) is None, rules.NO_WEIGHT),
        ((number(weight) or 0.0) < 0, rules.NEGATIVE_WEIGHT),
    ]
    return next((name for is_broken, name in broken if is_broken), None)


def key(row):
    return id_of(row[0]), id_of(row[1]), int(number(row[2]) // 1)


def expected(rows):
    """Returns the keys of the good rows, and how many rows break each rule."""
    reasons = Counter(reason(row) for row in rows)
    good = [key(row) for row in rows if reason(row) is None]
    n_good = reasons.pop(None, 0)
    assert n_good == len(good)
    return good, dict(reasons)


# --- files of them

_DAMAGED_LINES = [
    (b"1,2\n", WRONG_WIDTH),
    (b"1,2,1600000000,1,1,1\n", WRONG_WIDTH),
    (b"\xff\xfe,2,1600000000,1,1\n", NOT_TEXT),
    (b"1,\0,1600000000,1,1\n", NOT_TEXT),
    (b"x\ry,2\n", WRONG_WIDTH),
]
_OPEN_QUOTE = (b'1,"2,1600000000,1,1\n', OPEN_QUOTE)


def write_csv(path: Path, rows, seed, *, with_open_quote=True):
    """Writes rows among damaged lines; returns all good rows, and how many of each damage."""
    chance = random.Random(seed)
    damaged: Counter[str] = Counter()
    middle = len(rows) // 2
    with path.open("wb") as file:
        file.write(b"u,i,t,r,w\n")
        for at, row in enumerate(rows):
            text = io.StringIO(newline="")
            # Its quotes depend on it: a carriage return is quoted where it ends lines.
            ends = ["\r\n"] if any("\r" in field for field in row) else ["\n", "\r\n"]
            csv.writer(text, lineterminator=chance.choice(ends)).writerow(row)
            file.write(text.getvalue().encode())
            if chance.random() < 0.02:
                line, why = chance.choice(_DAMAGED_LINES)
                file.write(line)
                damaged[why] += 1
            if chance.random() < 0.01:
                file.write(chance.choice([b"\n", b"\r\n"]))
            if at == middle and with_open_quote:
                # Too many lines before the next quote for it to be closed by that one.
                file.write(_OPEN_QUOTE[0])
                damaged[_OPEN_QUOTE[1]] += 1
                plain = ["1", "2", "1600000000", "1", "1"]
                file.write((",".join(plain) + "\n").encode() * 1100)
                rows = [*rows, *[plain] * 1100]
    return rows, dict(damaged)


def write_jsonl(path: Path, rows, seed):
    """Writes rows as nested objects among damaged lines; returns how many of each damage.

    Whole numbers are often written as numbers.
    """
    chance = random.Random(seed)
    damaged: Counter[str] = Counter()
    with path.open("wb") as file:
        for row in rows:
            values = [_as_number(text) if chance.random() < 0.5 else text for text in row]
            user, item, time, rating, weight = values
            made = {"u": user, "o": {"i": item, "t": time}, "r": rating, "w": weight, "x": [1]}
            is_ascii = chance.random() < 0.5
            file.write(json.dumps(made, ensure_ascii=is_ascii).encode() + b"\n")
            if chance.random() < 0.002:
                line, why = chance.choice(
                    [
                        (b'{"u": \n', NOT_JSON),
                        (b"[1]\n", NOT_JSON),
                        (b'{"u": "\xff"}\n', NOT_TEXT),
                        (b'{"u": 1}{"u": 2}\n', NOT_JSON),
                        (b"\n \n", ""),
                    ]
                )
                file.write(line)
                damaged[why] += bool(why)
    return {why: n for why, n in damaged.items() if why}


def _as_number(text):
    is_plain = text.isdecimal() and text.isascii() and str(int(text)) == text
    return int(text) if is_plain else text
