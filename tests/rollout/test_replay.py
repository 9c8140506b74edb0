"""What was recorded comes back bit for bit, for the call and the prompts it was sampled for."""

import jax
import numpy as np
import pytest

from grpo_jax.rollout import NativeEngine, RecordingEngine, ReplayEngine, Sampling
from tests.rollout.tiny import PROMPTS, model

SAMPLING = Sampling(max_tokens=9, group_size=3, stop_ids=(0,), top_k=7)
KEYS = [jax.random.fold_in(jax.random.key(3), step) for step in range(3)]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    path = tmp_path_factory.mktemp("replay") / "rollouts.jsonl"
    graphdef, params = model()
    engine = RecordingEngine(NativeEngine(graphdef, max_prompt_length=8), path)
    engine.load(params)
    rollouts = [engine.generate(PROMPTS, sampling=SAMPLING, key=key) for key in KEYS]
    engine.close()
    return path, rollouts


def test_calls_come_back_bit_for_bit_in_any_order(recorded):
    path, rollouts = recorded
    engine = ReplayEngine(path, max_prompt_length=8)
    engine.load(None)
    for step in (2, 0, 1):
        again = engine.generate(PROMPTS, sampling=SAMPLING, key=KEYS[step])
        jax.tree.map(np.testing.assert_array_equal, again, rollouts[step])
        jax.tree.map(lambda a, b: np.testing.assert_equal(a.dtype, b.dtype), again, rollouts[step])
    engine.close()


def test_another_call_and_other_prompts_are_errors(recorded):
    path, _ = recorded
    engine = ReplayEngine(path, max_prompt_length=8)
    with pytest.raises(ValueError, match=r"no call with key .*; it has 3 calls"):
        engine.generate(PROMPTS, sampling=SAMPLING, key=jax.random.key(9))
    others = [*PROMPTS[:2], [1, 1], *PROMPTS[3:]]
    with pytest.raises(ValueError, match="prompts differ from row 6 on"):
        engine.generate(others, sampling=SAMPLING, key=KEYS[0])
    with pytest.raises(
        ValueError, match="recorded for 15 completions, asked for 12; the prompts differ from row 12 on"
    ):
        engine.generate(PROMPTS[:4], sampling=SAMPLING, key=KEYS[0])


def test_a_bad_line_is_an_error_with_its_number(recorded, tmp_path):
    path, _ = recorded
    lines = path.read_text().splitlines()
    broken = tmp_path / "broken.jsonl"
    broken.write_text("\n".join([*lines[:4], lines[4][:30]]))
    with pytest.raises(ValueError, match=r"broken\.jsonl, line 5: not a recorded completion"):
        ReplayEngine(broken, max_prompt_length=8)
