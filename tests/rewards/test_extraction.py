"""The final answer within a completion, and none where there is none."""

import time

import pytest

from grpo_jax.rewards.extraction import final_answer

LONG = r"\frac{" + "+".join(f"a_{{{i}}}" for i in range(30)) + "}{2}"


@pytest.mark.parametrize(
    ("completion", "strict", "lenient"),
    [
        (r"\boxed{840} ... \boxed{840}", "840", "840"),
        (r"\boxed {17}", "17", "17"),
        (r"\boxed 5.", "5", "5"),
        (rf"so \boxed{{{LONG}}}.", LONG, LONG),
        (r"\boxed{\text{a \} b}}", r"\text{a \} b}", r"\text{a \} b}"),
        (r"\boxed{4}, no: \boxed{6}", "6", "6"),
        (r"Use \boxed{}. It is \boxed{14}.", "14", "14"),
        (r"It is \boxed{14}. Recall \boxed{}.", "14", "14"),
        (r"\boxed{4} then \boxed{12", None, None),
        ("<answer> 3 </answer>", "3", "3"),
        (r"<answer>\boxed{3}</answer>", "3", "3"),
        ("reasoning\n#### 1,080", "1,080", "1,080"),
        ("**73**", None, "73"),
        ("The total: **73**. I hope this helps you.", None, "73"),
        ("The final answer is -3", None, "-3"),
        ("The answer is: $\\frac{1}{2}$. I hope it is correct.", None, "\\frac{1}{2}"),
        ("Final Answer: 12 apples", None, "12 apples"),
        ("the answer is not clear to me", None, None),
        ("so we get 7 in the end", None, "7"),
        ("2 1/3", None, "2 1/3"),
        ("I am not able to solve this one.", None, None),
        (r"<think>it is \boxed{9}</think> I can not say", None, None),
        (r"<think>\boxed{9}</think>\boxed{8}", "8", "8"),
        ("", None, None),
    ],
)
def test_fault_62_the_answer_in_both_modes(completion, strict, lenient):
    assert final_answer(completion, "strict") == strict
    assert final_answer(completion, "lenient") == lenient


@pytest.mark.parametrize(
    "hostile",
    [
        *(
            text * 10**5
            for text in ("\\boxed{", "\\boxed{}", "{", "answer is ", "**", "####", "<answer>", "a b ")
        ),
        *(text * 10**6 for text in ("\\", "\x00", "1")),
        "answer" + " " * 10**6,
    ],
)
def test_hostile_text_takes_bounded_time(hostile):
    start = time.process_time()
    final_answer(hostile)
    assert time.process_time() - start < 1
