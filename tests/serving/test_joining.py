"""Waiting requests are answered together, with the same results as one by one."""

import asyncio
import json
import threading

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from serving import wait_for

from recsys.serving.predictor import MicroBatcher, Question, answer_together
from recsys.serving.requests import HttpError, Limits
from recsys.serving.served_model import Retriever
from recsys.serving.tf_serving import write_answer


class Echo:
    """Answers each row with its own inputs, and notes how often it was asked."""

    def __init__(self):
        self.asked = []

    def ask(self, signature, inputs):
        self.asked.append((signature, inputs))
        rows = zip(inputs["id"], inputs["history"], strict=True)
        texts = [b"|".join([id_, *given]) for id_, given in rows]
        return {"text": np.array(texts, object), "seen": inputs["exclude_seen"]}


class Odd:
    """Gives one number for all rows."""

    def ask(self, signature, inputs):
        return {"total": np.zeros(1)}


def question(ids, histories, signature="recommend"):
    inputs = {
        "id": np.array(ids, object),
        "history": np.array(histories, object),
        "exclude_seen": np.arange(len(ids)) % 2 == 0,
    }
    return Question(signature, inputs, lambda outputs: write_answer("", outputs, by_row=True))


def test_joined_rows_keep_their_inputs_and_come_back_to_their_request():
    model = Echo()
    some = [
        question([b"a"], [[b"x", b"y", b"z"]]),
        question([b"b", b"c"], [[b""], [b"u"]]),
        question([b"d"], [[b"a\x00"]]),
    ]
    found = [json.loads(body)["predictions"] for body in answer_together(model, some)]
    assert len(model.asked) == 1
    assert found == [
        [{"text": "a|x|y|z", "seen": True}],
        [{"text": "b|||", "seen": True}, {"text": "c|u||", "seen": False}],
        [{"text": "d|a\x00||", "seen": True}],
    ]
    with pytest.raises(ValueError, match="not by row"):
        answer_together(Odd(), some)


@pytest.mark.parametrize(
    ("asked", "may"),
    [
        (question([b"a"], [[b""]]), True),
        (question([b"a"], [[b""]], "recommend_filtered"), True),
        (question([b"a"], [[b""]], "embed_query"), False),
        (question([b"a"] * 9, [[b""]] * 9), False),
        (question([], np.zeros((0, 0))), False),
    ],
)
def test_small_recommendations_alone_are_joined(asked, may):
    assert asked.may_join(Retriever) is may


class Threads:
    """A `MicroBatcher` with one blocked thread, and an event loop."""

    def __init__(self, **limits):
        self.work = MicroBatcher(Limits(threads=1, **limits))
        self.may_go, self.is_held = threading.Event(), threading.Event()

    def hold(self):
        self.is_held.set()
        assert self.may_go.wait(20)

    async def ask(self, kinds, answer):
        held = asyncio.create_task(self.work.run(self.hold))
        await asyncio.to_thread(self.is_held.wait, 20)
        asked = [
            asyncio.create_task(self.work.together(kind, number, answer))
            for number, kind in enumerate(kinds)
        ]
        await asyncio.sleep(0)
        self.may_go.set()
        await held
        return await asyncio.gather(*asked, return_exceptions=True)


def test_those_who_wait_are_answered_at_once_and_kinds_never_mix():
    threads, calls = Threads(), []

    def answer(questions):
        calls.append(list(questions))
        return [10 * number for number in questions]

    found = asyncio.run(threads.ask("aababb" + "a" * 30, answer))
    assert found == [10 * number for number in range(36)]
    assert calls[0] == [0, 1, 3, *range(6, 27)]  # As many as are answered at once.
    assert calls[1:] == [[2, 4, 5], list(range(27, 36))] or sorted(map(len, calls)) == [3, 9, 24]
    wait_for(lambda: threads.work.held == 0)
    threads.work.close()


def test_one_at_fault_is_refused_and_the_others_are_answered():
    threads = Threads()

    def answer(questions):
        if 1 in questions:
            raise HttpError(400, "R563", "It must be right.", "Correct it.")
        return list(questions)

    found = asyncio.run(threads.ask("aaa", answer))
    assert (found[0], found[2]) == (0, 2)
    assert isinstance(found[1], HttpError)
    threads.work.close()


def test_positions_are_counted_for_those_who_are_joined_too():
    threads = Threads(queue=2)
    found = asyncio.run(threads.ask("aaaa", list))
    statuses = [getattr(one, "status", one) for one in found]
    assert statuses == [0, 1, 429, 429]
    wait_for(lambda: threads.work.held == 0)
    threads.work.close()


def test_a_timeout_is_reported_and_costs_no_other_answer():
    threads = Threads(answer_s=0.05)

    async def ask():
        held = asyncio.create_task(threads.work.run(threads.hold))
        await asyncio.to_thread(threads.is_held.wait, 20)
        found = await asyncio.gather(threads.work.together("a", 1, list), return_exceptions=True)
        threads.may_go.set()
        await asyncio.gather(held, return_exceptions=True)
        # Threads give their places back through the loop, so it must not end before.
        await asyncio.wait_for(until_free(threads.work), 20)
        return found

    async def until_free(work):
        while work.held:
            await asyncio.sleep(0.01)

    [found] = asyncio.run(ask())
    assert found.status == 503
    threads.work.close()
