r"""The judge on recorded cases.

`GRPO_JAX_MATH_CASES=FILE pytest tests/rewards/test_math_cases.py` runs another file.
A case is a line of JSON: `pred`, `gold`, `equal`, and a `kind`. Those of kind policy/* could be decided
otherwise; how they are decided here is said in `grpo_jax.rewards.math`.
"""

import json
import os
import random
import re
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("math_verify")

from grpo_jax.rewards.math import Verdict, judge_all, unparseable_golds
from tests.shared import shared


def test_recorded_cases():
    path = os.environ.get("GRPO_JAX_MATH_CASES")
    file = Path(path) if path else shared("golden/math_answers.jsonl")
    cases = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    verdicts = judge_all([case["pred"] for case in cases], [case["gold"] for case in cases])
    wrong = [
        f"{case['kind']}: {case['pred'][:80]!r} for {case['gold'][:80]!r} is {verdict}"
        for case, verdict in zip(cases, verdicts, strict=True)
        if (verdict is Verdict.EQUAL) != case["equal"]
    ]
    assert cases and not wrong, "\n".join(wrong)


SETS = {
    "gsm8k_train": ("answer", 7473),
    "gsm8k_test": ("answer", 1319),
    "svamp": ("Answer", 1000),
    "aime24": ("answer", 30),
    "amc23": ("answer", 40),
}


def golds(name):
    field, count = SETS[name]
    lines = shared(f"data/{name}.jsonl").read_text(encoding="utf-8").splitlines()
    found = [str(json.loads(line)[field]).rpartition("####")[2].strip() for line in lines]
    assert len(found) == count
    return found


def perturbed(gold):
    """The number ± 1, with the other sign, and with two neighbouring digits swapped."""
    text = gold.replace(",", "")
    value = float(text)
    for other in (f"{value + 1:g}" if value < 1e5 else str(int(value) + 1), f"{value - 1:g}", f"{-value:g}"):
        if float(other) != value:
            yield other
    digits = list(text)
    swaps = [i for i, (a, b) in enumerate(pairwise(text)) if a != b and (a + b).isdigit()]
    if swaps:
        i = random.Random(text).choice(swaps)
        digits[i], digits[i + 1] = digits[i + 1], digits[i]
        yield "".join(digits)


@pytest.mark.parametrize("name", SETS)
def test_fault_65_every_gold_is_itself_and_no_other(name):
    references = golds(name)
    assert unparseable_golds(references) == []
    for wrap in ("{}", "\\boxed{{{}}}", "The answer is {}.", "so that\n#### {}"):
        verdicts = judge_all([wrap.format(gold) for gold in references], references)
        assert set(verdicts) == {Verdict.EQUAL}
    pairs = [(other, gold) for gold in references for other in perturbed(gold)]
    equal = [
        p for p, v in zip(pairs, judge_all(*zip(*pairs, strict=True)), strict=True) if v is Verdict.EQUAL
    ]
    assert len(pairs) > 2 * len(references) and not equal, equal[:5]


def test_the_perturbations_are_what_they_say():
    *others, swapped = perturbed("1,080")
    assert others == ["1081", "1079", "-1080"] and re.fullmatch("0180|1800|1008", swapped)
