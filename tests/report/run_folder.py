"""A small run folder, written by the same writers as a real one."""

import math

import numpy as np

from grpo_jax.evaluation import evaluate
from grpo_jax.training.metrics import MetricWriter
from grpo_jax.training.records import SampleWriter, save_evaluation
from grpo_jax.types import Problem

HOSTILE = '</pre><script>alert("x")</script>\x00\u202e\ud800&amp;'
PROBLEMS = [Problem(prompt=f"{i}+1=", answer=str(i + 1)) for i in range(40)]


def evaluation(right_of_four):
    """Every problem has `right_of_four` of its four samples right."""

    def generate(problems, samples):
        texts = [[p.answer if j < right_of_four else "?" for j in range(samples)] for p in problems]
        return texts, [[2] * samples] * len(problems), [[False] * samples] * len(problems)

    return evaluate(PROBLEMS, generate=generate, judge=lambda p, text: text == p.answer, samples=4)


def step_metrics(step, steps):
    done = step / steps
    return {
        "reward/mean": done,
        "length/mean": 20 + done,
        "length/positive_mean": 18.0,
        "length/negative_mean": 24.0 if step != 2 else math.nan,
        "length/gap": 0.2,
        "length/cv": 0.1,
        "coupling/log_ratio": 0.0,
        "entropy/mean": 1 - done / 2,
        "clip/low_fraction": 0.01,
        "clip/high_fraction": 0.02,
        "kl/ref": 0.1 * done,
        "kl/old": 0.001,
        "grad/norm": 0.5,
        "groups/mixed_fraction": 0.5,
        "groups/all_right": 0.25,
        "groups/all_wrong": 0.25,
        "sampler/log_prob_gap": 1e-6,
        "sampler/programs": 7.0,
        "time/rollout_seconds": 2.0,
        "time/update_seconds": 1.0,
        "throughput/completion_tokens_per_second": 100.0,
    }


def write_run(folder, *, steps=4):
    with MetricWriter(folder) as metrics, SampleWriter(folder, count=2) as samples:
        metrics.write({"warm_start/loss": 2.0}, step=1, stage="warm_start")
        metrics.write({"warm_start/loss": 1.0}, step=2, stage="warm_start")
        for step, right in ((0, 1), (steps, 3)):
            result = evaluation(right)
            save_evaluation(folder, result.completions, step=step, stage="policy")
            row = result.metrics() | {"time/evaluate_seconds": 1.5}
            if step == 0:
                metrics.write(row, step=0, stage="policy")
        for step in range(1, steps + 1):
            metrics.write(
                step_metrics(step, steps) | (row if step == steps else {}), step=step, stage="policy"
            )
            samples.write(
                step=step,
                stage="policy",
                prompts=["2+2=", HOSTILE],
                completions=[f"answer at step {step}", HOSTILE + "a" * 5000],
                rewards=[1.0, np.nan],
                advantages=[0.5, -0.5],
                stop_reasons=[0, 1],
            )
    (folder / "config.py").write_text('config = Config(run=RunConfig(folder="<runs>"))\n')
    return folder
