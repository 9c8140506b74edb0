"""A run with an environment at the tiniest size: collected, judged, trained, evaluated, logged."""

from dataclasses import replace

import jax
import pytest

from grpo_jax.config import (
    ArithmeticData,
    EvaluationConfig,
    LossConfig,
    RewardConfig,
    RewardFunction,
    RolloutConfig,
    TrainConfig,
    UpdateConfig,
)
from grpo_jax.environments import Step
from grpo_jax.report import write_report
from grpo_jax.sampling import sampler
from grpo_jax.training import collect, judging, loop, setup
from grpo_jax.training.records import read_rows
from grpo_jax.types import Message
from tests.tiny import MODEL, tiny


class Echo:
    """Answers a turn that has an even number of characters with that number; demonstrates two turns."""

    stop_strings = tuple("0123456789abcdefghijklmnopqrstuvwxyz")  # so that an untrained model takes turns

    def reset(self, problem):
        return 0

    def step(self, state, text):
        if len(text) % 2:
            return Step(state, None)
        return Step(state + 1, Message("tool", str(len(text))))

    def demonstrate(self, problem):
        return "15", problem.answer if len(problem.answer) % 2 else problem.answer + "."


def turns(problem, completion):
    """Pays for what the whole conversation was, which the problem's metadata has."""
    said = problem.metadata["turns"]
    assert said[-1].content == completion and said[-1].role == "assistant"
    assert all(turn.content in ("2", "4", "6") for turn in said[1::2])
    return float(len(said) > 1)


def config(folder):
    return tiny(
        folder,
        data=ArithmeticData(max_digits=1, held_out_fraction=0.3),
        model=replace(MODEL, max_position=24),
        reward=RewardConfig(
            (RewardFunction("tests.training.test_environment:turns"), RewardFunction("exact_match"))
        ),
        rollout=RolloutConfig(
            batch_size=2,
            group_size=4,
            max_prompt_length=8,
            max_completion_length=8,
            environment="tests.training.test_environment:Echo",
            max_turns=3,
        ),
        loss=LossConfig(),
        update=UpdateConfig(),
        train=TrainConfig(steps=2),
        evaluation=EvaluationConfig(every=0, problems=2, samples=4),
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run, what it samples before its first step, and nothing of its state: it has trained since."""
    run = setup.prepare(config(tmp_path_factory.mktemp("environment") / "run"))
    with collect.held(run, setup.initial_state(run)):
        sampling = collect.sampling_of(run, temperature=1.0, group_size=4)
        rollout = collect.sample(run, run.train[:2], sampling, key=jax.random.key(0))
    loop.train(run)
    return run, rollout


def test_a_run_with_an_environment_trains_logs_and_evaluates(trained):
    run, _ = trained
    rows = [
        row for row in read_rows(run.folder / "metrics.jsonl") if row["stage"] == "policy" and row["step"]
    ]
    assert max(row["sampler/log_prob_gap"] for row in rows) < 1e-5
    assert any(row["turns/mean"] > 1 and 0 < row["turns/environment_fraction"] < 1 for row in rows)
    assert any(row["grad/norm"] > 0 for row in rows) and "eval/accuracy" in rows[-1]
    samples = [row["turns"] for row in read_rows(run.folder / "samples.jsonl")]
    said = next(turns for turns in samples if len(turns) > 1)
    assert [turn["role"] for turn in said[:2]] == ["assistant", "environment"]
    (evaluation,) = sorted((run.folder / "evaluations").glob("policy_000002.jsonl"))
    assert all(row["turns"][-1]["content"] == row["completion"] for row in read_rows(evaluation))
    assert said[1]["content"] in write_report(run.folder).read_text()


def test_the_policy_s_own_tokens_are_its_turns_and_the_last_is_judged(trained):
    run, rollout = trained
    assert rollout.prompt_ids.shape == (8, 8) and (~rollout.sampled).any()
    problems, texts = judging.judged_texts(
        run.tokenizer, [run.train[group].problem for group in rollout.group_ids], rollout
    )
    for n, (problem, text) in enumerate(zip(problems, texts, strict=True)):
        said, length = problem.metadata["turns"], rollout.completion_lengths[n]
        whole = run.tokenizer.decode(rollout.completion_ids[n, :length].tolist())
        assert "".join(turn.content for turn in said) == whole and said[-1].content == text
        own = run.tokenizer.decode(rollout.completion_ids[n][rollout.sampled[n]].tolist())
        assert "".join(turn.content for turn in said[::2]) == own


def test_wrong_turns_are_errors_before_the_run(tmp_path):
    wrong = config(tmp_path / "run")
    with pytest.raises(ValueError, match=r"rollout\.max_turns: got 0, expected a positive number"):
        setup.prepare(replace(wrong, rollout=replace(wrong.rollout, max_turns=0)))
    with pytest.raises(ValueError, match=r"rollout\.environment: 'abacus' is not known"):
        setup.prepare(replace(wrong, rollout=replace(wrong.rollout, environment="abacus")))


def test_where_nobody_answers_a_run_gives_first_turns(trained):
    run, _ = trained
    assert sampler.defaults(run.config, run.tokenizer).stop_strings == Echo.stop_strings
