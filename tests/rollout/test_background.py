"""Groups come as they finish, once each and with their final rows; a call can fail, wait its turn and be cancelled."""

import threading

import jax
import numpy as np
import pytest

from grpo_jax.rollout import NativeEngine, Sampling
from grpo_jax.rollout.background import Background, Cancelled
from grpo_jax.types import Rollout, joined, rows
from tests.rollout.tiny import PROMPTS, model

KEY = jax.random.key(3)
SAMPLING = Sampling(max_tokens=12, group_size=3, stop_ids=(0,))


@pytest.fixture(scope="module")
def background():
    graphdef, params = model()
    background = Background(NativeEngine(graphdef, max_prompt_length=8, slots=4, chunk=2))
    yield background, params
    background.close()


def test_every_group_comes_once_with_the_rows_of_the_whole_rollout(background):
    background, params = background
    pending = background.start(params, PROMPTS, sampling=SAMPLING, key=KEY)
    groups = dict(pending.groups())
    assert sorted(groups) == list(range(len(PROMPTS)))
    whole = pending.result()
    again = joined([groups[place] for place in range(len(PROMPTS))])
    jax.tree.map(np.testing.assert_array_equal, again, whole)


class Gated:
    """An engine whose second group waits for a gate."""

    def __init__(self):
        self.gate, self.loaded = threading.Event(), []

    def load(self, params):
        self.loaded.append(params)

    def generate(self, prompt_ids, *, sampling, key, on_group):
        n = len(prompt_ids)
        rollout = Rollout(*(np.arange(n)[:, None] if f in (0, 2, 6, 7) else np.arange(n) for f in range(8)))
        on_group(0, rows(rollout, [0]))
        assert self.gate.wait(timeout=20)
        on_group(1, rows(rollout, [1]))
        return rollout

    def close(self):
        pass


def test_a_group_can_be_had_while_others_are_being_decoded():
    background = Background(Gated())
    pending = background.start("params", [[1], [2]], sampling=SAMPLING, key=KEY)
    groups = pending.groups()
    assert next(groups)[0] == 0  # the engine is still at its second group
    background.engine.gate.set()
    assert next(groups)[0] == 1 and list(groups) == []
    background.close()


def test_calls_run_in_the_order_they_were_made():
    background = Background(Gated())
    first, second = (background.start(name, [[1], [2]], sampling=SAMPLING, key=KEY) for name in "ab")
    background.engine.gate.set()
    first.result(), second.result()
    assert background.engine.loaded == ["a", None, "b", None]
    background.close()


def test_parameters_that_are_held_are_loaded_once_behind_the_calls_before():
    background = Background(Gated())
    background.engine.gate.set()
    background.start("a", [[1], [2]], sampling=SAMPLING, key=KEY)
    with background.holding("b"):
        for _ in range(3):
            background.start(None, [[1], [2]], sampling=SAMPLING, key=KEY).result()
        assert background.engine.loaded == ["a", None, "b"]
        with pytest.raises(AssertionError):  # it would be sampled with, and unload what is held
            background.start("a", [[1], [2]], sampling=SAMPLING, key=KEY)
    background.start("c", [[1], [2]], sampling=SAMPLING, key=KEY).result()
    background.close()
    assert background.engine.loaded == ["a", None, "b", None, "c", None]


def test_parameters_that_are_kept_are_loaded_once_until_others_are_or_they_are_released():
    background, a, b = Background(Gated()), ["a"], ["a"]  # equal, and not the same
    background.engine.gate.set()
    for params in (a, a, b, b):
        background.start(params, [[1], [2]], sampling=SAMPLING, key=KEY, keep=True).result()
    assert background.engine.loaded == [a, b]
    background.release()
    background.start(b, [[1], [2]], sampling=SAMPLING, key=KEY, keep=True)
    background.start(b, [[1], [2]], sampling=SAMPLING, key=KEY).result()
    background.close()
    assert background.engine.loaded == [a, b, None, b, None]


def test_what_the_engine_raises_comes_out_and_closing_cancels(background):
    background, params = background
    pending = background.start(params, [[1] * 99], sampling=SAMPLING, key=KEY)
    with pytest.raises(ValueError, match="has 99 tokens"):
        list(pending.groups())
    gated = Background(Gated())
    pending = gated.start("params", [[1], [2]], sampling=SAMPLING, key=KEY)
    pending.cancel()
    gated.engine.gate.set()
    gated.close()
    with pytest.raises(Cancelled):
        pending.result()
