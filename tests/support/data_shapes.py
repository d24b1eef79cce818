"""Tiny versions of public data sets: the shapes and the quirks of their files, made-up rows.

Each function writes the files of one data set into a folder and returns their paths, the
interactions first. 60 users and 40 items are in four groups; users mostly interact with items of
their own group, so that a model can learn.
"""

import datetime as dt
import json
import random
from pathlib import Path

N_USERS, N_ITEMS, N_GROUPS = 60, 40, 4

_FIRST = 1_388_534_400  # 2014-01-01
_DAY = 86_400
_GENRES = ("Action", "Comedy", "Drama", "Horror")
_MORE = ("Short", "Silent", "Musical", "War", "Western")


def write_movielens(folder: Path) -> list[Path]:
    """ml-latest: CSV with headers; `|` between genres, commas and quotes in titles."""
    events = sorted(_events(1), key=lambda event: (event.user, event.item))
    rows = [f"{e.user},{e.item},{e.rating / 2},{e.time}" for e in events]
    movies = [
        f'{item},"{_title(item)}, The ({1950 + item})",{"|".join(_genres(item))}'
        for item in range(1, N_ITEMS + 1)
    ]
    return [
        _lines(folder / "ratings.csv", ["userId,movieId,rating,timestamp", *rows]),
        _lines(folder / "movies.csv", ["movieId,title,genres", *movies]),
    ]


def write_amazon_ratings(folder: Path) -> list[Path]:
    """Amazon 2014, ratings only: CSV without a header, sorted by item; ASINs and ISBNs."""
    events = sorted(_events(2), key=lambda event: (_asin(event.item), event.user))
    rows = [f"{_reviewer(e.user)},{_asin(e.item)},{e.rating // 2}.0,{e.time}" for e in events]
    return [_lines(folder / "ratings_Beauty.csv", rows)]


def write_amazon_reviews(folder: Path) -> list[Path]:
    """Amazon 2023: JSON Lines with two item ids, and metadata that has one of them."""
    reviews = [
        {
            "rating": e.rating // 2 + 0.0, "title": "Good", "text": f"It works,\nday {e.time % 97}",
            "images": [], "asin": _asin(e.item + N_ITEMS * (e.user % 2)),
            "parent_asin": _asin(e.item), "user_id": _reviewer(e.user),
            "timestamp": e.time * 1000 + 123, "helpful_vote": e.user % 3,
            "verified_purchase": e.user % 2 == 0,
        }
        for e in _events(3)
    ]  # fmt: skip
    metadata = [
        {
            "main_category": "All Beauty", "title": _title(item),
            "average_rating": 4.1 + item % 9 / 10, "rating_number": 10 * item,
            "features": [f"Feature {item % 5}"], "description": [],
            "price": None if item % 3 else 9.99 + item, "videos": [],
            "images": [{"large": f"https://m.media/{item}.jpg", "variant": "MAIN"}],
            "store": f"Store {item % 7}", "categories": _genres(item),
            "details": {"Brand": f"Brand {item % 6}"}, "parent_asin": _asin(item),
            "bought_together": None,
        }
        for item in range(1, N_ITEMS + 1)
    ]  # fmt: skip
    return [
        _lines(folder / "All_Beauty.jsonl", map(json.dumps, reviews)),
        _lines(folder / "meta_All_Beauty.jsonl", map(json.dumps, metadata)),
    ]


def write_lastfm(folder: Path) -> list[Path]:
    """HetRec Last.fm: tabs, play counts, no time; web addresses beside the names of artists."""
    pairs = sorted({(e.user, e.item): e for e in _events(4)}.items())
    plays = [f"{user + 1}\t{item}\t{_plays(e)}" for (user, item), e in pairs]
    artists = [
        f"{item}\t{_title(item)}\thttp://www.last.fm/music/{_title(item).replace(' ', '+')}"
        f"\thttp://userserve-ak.last.fm/serve/252/{item * 997}.jpg"
        for item in range(1, N_ITEMS + 1)
    ]
    return [
        _lines(folder / "user_artists.dat", ["userID\tartistID\tweight", *plays]),
        _lines(folder / "artists.dat", ["id\tname\turl\tpictureURL", *artists]),
    ]


def write_sasrec(folder: Path) -> list[Path]:
    """SASRec: `user item` lines without a header, user by user, the oldest first."""
    return [_lines(folder / "Beauty.txt", [f"{e.user} {e.item}" for e in _events(5)])]


def write_recbole(folder: Path) -> list[Path]:
    """RecBole's atomic files: tabs, `name:type` in the header, blanks in sequences."""
    events = sorted(_events(6), key=lambda event: event.time % 997)
    rows = [f"{e.user}\t{e.item}\t{e.rating // 2}\t{e.time}" for e in events]
    items = [
        f"{item}\t{_title(item)}\t{1950 + item}\t{' '.join(_genres(item))}"
        for item in range(1, N_ITEMS + 1)
    ]
    interactions = "user_id:token\titem_id:token\trating:float\ttimestamp:float"
    catalogue = "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq"
    return [
        _lines(folder / "ml-100k.inter", [interactions, *rows]),
        _lines(folder / "ml-100k.item", [catalogue, *items]),
    ]


def write_gowalla(folder: Path) -> list[Path]:
    """Gowalla: tabs, no header, ISO times, places; each user's newest check-in first."""
    events = sorted(_events(7), key=lambda event: (event.user, -event.time))
    rows = [
        f"{e.user - 1}\t{_iso(e.time)}Z\t{30 + e.item / 7:.7f}\t{-97 - e.item / 9:.10f}"
        f"\t{20_000 + 131 * e.item}"
        for e in events
    ]
    return [_lines(folder / "Gowalla_totalCheckins.txt", rows)]


def write_otto(folder: Path) -> list[Path]:
    """OTTO: JSON Lines, one session a line with the list of its events."""
    sessions: dict[int, list[dict[str, object]]] = {}
    for e in _events(8):
        kind = ("clicks", "clicks", "carts", "orders")[e.rating % 4]
        event = {"aid": 1_000 + e.item, "ts": 1000 * (e.time + 270_000_000) + 25, "type": kind}
        sessions.setdefault(e.user, []).append(event)
    rows = [{"session": user + 11_000, "events": events} for user, events in sessions.items()]
    return [_lines(folder / "otto-recsys-train.jsonl", map(json.dumps, rows))]


def write_lightgcn(folder: Path) -> list[Path]:
    """LightGCN: a user and all its items a line, in a file to train on and one to test on."""
    items: dict[int, list[int]] = {}
    for e in _events(9):
        items.setdefault(e.user - 1, []).append(e.item - 1)
    train, test = [], []
    for user, taken in items.items():
        unique = sorted(set(taken))
        n_train = round((1.0 if user % 10 == 3 else 0.8) * len(unique))
        train.append(" ".join(map(str, [user, *unique[:n_train]])))
        # A user without items to test on has a blank behind its id, as in the original.
        test.append(f"{user} " + " ".join(map(str, unique[n_train:])))
    return [_lines(folder / "train.txt", train), _lines(folder / "test.txt", test)]


def write_book_crossing(folder: Path) -> list[Path]:
    """Book-Crossing: `;`, quotes around all, Latin-1, here with decimal commas; no time."""
    pairs = sorted({(e.user, e.item): e for e in _events(10)}.items())
    ratings = [
        _quoted(276_700 + user, _isbn(item), f"{e.rating},{5 * (item % 2)}")
        for (user, item), e in pairs
    ]
    books = [
        _quoted(
            _isbn(item), f"{_title(item)} für alle", f"Böll {item % 8}", 1950 + item,
            f"Éditions {item % 5}", f"http://images.amazon.com/images/P/{_isbn(item)}.01.jpg",
        )
        for item in range(1, N_ITEMS + 1)
    ]  # fmt: skip
    users = [
        _quoted(276_700 + user, f"köln {user % 5}, nrw, germany", "NULL" if user % 4 else 20 + user)
        for user in range(1, N_USERS + 1)
    ]
    head = _quoted(
        "ISBN", "Book-Title", "Book-Author", "Year-Of-Publication", "Publisher", "Image-URL-S"
    )
    ratings.insert(0, _quoted("User-ID", "ISBN", "Book-Rating"))
    users.insert(0, _quoted("User-ID", "Location", "Age"))
    return [
        _lines(folder / "BX-Book-Ratings.csv", ratings, "latin-1"),
        _lines(folder / "BX-Books.csv", [head, *books], "latin-1"),
        _lines(folder / "BX-Users.csv", users, "latin-1"),
    ]


WRITERS = (
    write_movielens,
    write_amazon_ratings,
    write_amazon_reviews,
    write_lastfm,
    write_sasrec,
    write_recbole,
    write_gowalla,
    write_otto,
    write_lightgcn,
    write_book_crossing,
)


# --- what happened, and how things are called


class _Event:
    def __init__(self, user: int, item: int, rating: int, time: int) -> None:
        self.user, self.item, self.rating, self.time = user, item, rating, time


def _events(seed: int) -> list[_Event]:
    """Returns some 1,500 events: ids from 1 on, ratings 2 to 10, user by user, in time order."""
    chance = random.Random(seed)
    events = []
    for user in range(1, N_USERS + 1):
        n_events = chance.randrange(15, 36)
        times = sorted(_FIRST + chance.randrange(400 * _DAY) for _ in range(n_events))
        events += [_event(user, time, chance) for time in times]
    return events


def _event(user: int, time: int, chance: random.Random) -> _Event:
    is_own = chance.random() < 0.8
    group = user % N_GROUPS if is_own else chance.randrange(N_GROUPS)
    item = 1 + group + N_GROUPS * min(chance.randrange(10), chance.randrange(10))
    return _Event(user, item, chance.choice((8, 9, 10) if is_own else (2, 4, 6)), time)


def _title(item: int) -> str:
    kind, thing = ("Red", "Old", "Last", "Lost", "Blue")[item % 5], ("Fox", "Sea", "Road")[item % 3]
    return f"The {kind} {thing} {item}"


def _genres(item: int) -> list[str]:
    return [_GENRES[(item - 1) % N_GROUPS], *_MORE[item % 5 : item % 5 + item % 3]]


def _plays(event: _Event) -> int:
    return 1 + event.time % 35 * (event.rating - 1) ** 2


def _reviewer(user: int) -> str:
    return f"A{user * 7_919_777_777 % 10**12:012X}"[:14]


def _asin(item: int) -> str:
    return f"B00{item * 77_777 % 36**4:07X}" if item % 4 else _isbn(item)


def _isbn(item: int) -> str:
    digits = f"{553_000_000 + item * 4_321:09d}"
    check = sum(place * int(digit) for place, digit in enumerate(digits, 1)) % 11
    return digits + ("X" if check == 10 else str(check))


def _iso(time: int) -> str:
    return dt.datetime.fromtimestamp(time, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _quoted(*fields: object) -> str:
    return ";".join("NULL" if field == "NULL" else f'"{field}"' for field in fields)


def _lines(path: Path, lines, encoding: str = "utf-8") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode(encoding))
    return path
