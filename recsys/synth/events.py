"""What a block of users does, with exact counts and no pair of user and item twice."""

from __future__ import annotations

import numpy as np

from recsys.synth.world import Items, Users

_ROUNDS_IN_TASTE = 40
_ROUNDS_ANYWHERE = 20
_ROUNDS_A_SORT = 4


def draw_events(
    items: Items, users: Users, first: int, last: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws all events of the users `first` … `last` - 1.

    Args:
        items: The catalogue.
        users: The users.
        first: First user of the block.
        last: End of the block, exclusive.
        rng: Source of chance, this block's own.

    Returns:
        User `[n]` int64, place of the item `[n]` int64 and time `[n]` float64 in
        [0..1), sorted by user and time.
    """
    user = np.repeat(np.arange(first, last), users.n_events[first:last])
    joined = users.joined[user].astype(np.float64)
    time = joined + (1.0 - joined) * rng.random(len(user))
    time = time[np.lexsort((time, user))]
    return user, _draw_places(items, users, user, time, rng), time


def _draw_places(
    items: Items, users: Users, user: np.ndarray, time: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Returns the place of the item `[n]` of each event, no user with the same one twice."""
    place = np.full(len(user), -1, np.int64)
    todo = np.arange(len(user))
    for round_ in range(_ROUNDS_IN_TASTE + _ROUNDS_ANYWHERE):
        if len(todo) == 0:
            break
        if round_ < _ROUNDS_IN_TASTE:
            cluster = users.draw_cluster(user[todo], time[todo], items.n_clusters, rng)
        else:
            cluster = rng.integers(0, items.n_clusters, len(todo))
        drawn = items.draw(cluster, rng)
        accepted = rng.random(len(todo)) < items.wanted(drawn, time[todo])
        place[todo[accepted]] = drawn[accepted]
        todo = todo[~accepted]
        # Repeats are found by sorting the whole block, so not in every round.
        if len(todo) == 0 or round_ % _ROUNDS_A_SORT == _ROUNDS_A_SORT - 1:
            place[_repeated(user - user[0], place, len(items))] = -1
            todo = np.flatnonzero(place < 0)
    _fill(user, place, todo, items.from_start, rng)
    return place


def _repeated(user: np.ndarray, place: np.ndarray, n_items: int) -> np.ndarray:
    """Returns the events `[m]` whose user has the same item in an earlier event."""
    taken = np.flatnonzero(place >= 0)
    keys = user[taken] * n_items + place[taken]
    order = np.argsort(keys, kind="stable")
    same = np.flatnonzero(keys[order][1:] == keys[order][:-1]) + 1
    return taken[order[same]]


def _fill(
    user: np.ndarray,
    place: np.ndarray,
    todo: np.ndarray,
    from_start: np.ndarray,
    rng: np.random.Generator,
) -> None:
    """Gives the events `todo` items that their users don't have yet, in place.

    Users who take nearly everything draw what they already have again and again;
    for them the rest is dealt out. The items from the start are enough: no user
    has more events than there are such items.
    """
    for one in np.unique(user[todo]):
        start, end = np.searchsorted(user, [one, one + 1])
        mine = todo[(todo >= start) & (todo < end)]
        free = np.setdiff1d(from_start, place[start:end])
        place[mine] = rng.choice(free, len(mine), replace=False)
