"""reasoning-gym's own scorers, where they are safe.

Two things are wrong with calling them on a completion. They pay for a text that merely contains the answer,
so the answer is extracted first and only a full score counts. And some run the answer as code, some can be
made to compute for ever, and some pay for wrong answers, so only tasks whose scorer was read and found
harmless are allowed.
"""

from functools import cache
from typing import Any

from grpo_jax.rewards.extraction import marked_answer
from grpo_jax.tasks.reasoning_gym import load_library
from grpo_jax.types import Problem

# Scorers that compare text, or plain numbers in bounded time.
BASE_CLASS = (
    "acre aiw arc_1d base_conversion basic_arithmetic bf binary_alternation caesar_cipher count_bits "
    "count_primes course_schedule gcd isomorphic_strings largest_island lcm leg_counting "
    "letter_counting list_functions mahjong_puzzle maze modulo_grid number_filtering number_sequence "
    "ransom_note rotate_matrix rotten_oranges simple_equations simple_geometry string_manipulation "
    "string_splitting string_synthesis syllogism word_sequence_reversal"
)
OVERRIDDEN = (
    "ab calendar_arithmetic chain_sum circuit_logic color_cube_rotation decimal_arithmetic "
    "decimal_chain_sum dice emoji_mystery family_relationships gsm_symbolic letter_jumble "
    "needle_haystack number_format path_star power_function products self_reference spell_backward "
    "word_sorting zebra_puzzles"
)
ALLOWED = frozenset(f"{BASE_CLASS} {OVERRIDDEN}".split())

REFUSED = {
    "eval": "its scorer runs the answer as Python code",
    "sympy": "its scorer lets sympy evaluate the answer, which runs code and can compute for ever",
    "broken": "its scorer pays for wrong answers or fails on ordinary ones",
}
REASONS = {
    **dict.fromkeys(("string_insertion", "spiral_matrix", "binary_matrix", "n_queens"), REFUSED["eval"]),
    **dict.fromkeys(
        (
            "simple_integration",
            "intermediate_integration",
            "polynomial_multiplication",
            "puzzle24",
            "countdown",
        ),
        REFUSED["sympy"],
    ),
    **dict.fromkeys(("game_of_life_halting", "prime_factorization"), REFUSED["broken"]),
}

MAX_ANSWER = 2_000
"""Characters of a longest answer; a longer one is wrong."""


def reasoning_gym(problem: Problem, completion: str, *, partial_credit: bool = False) -> float:
    """The task's own score of the completion's answer: 1 or 0, or the score itself with `partial_credit`."""
    task, entry = problem.metadata.get("task"), problem.metadata.get("entry")
    if task is None or entry is None:
        raise ValueError(
            "the problem is not one of reasoning-gym; use data.ReasoningGymData or another reward"
        )
    check_allowed(task)
    # Many answers are words or grids, so without a mark the whole completion is the answer.
    answer = marked_answer(completion) or completion.strip()
    if len(answer) > MAX_ANSWER:
        return 0.0
    value = float(_scorer(task)(answer, entry))
    return value if partial_credit else float(value == 1.0)


def check_allowed(task: str) -> None:
    """Raise if the scorer of a task must not judge what a model wrote."""
    if task not in ALLOWED:
        reason = REASONS.get(task, "its scorer has not been checked")
        raise ValueError(
            f"reward reasoning_gym: {task} is not allowed, because {reason}. Use exact_match, number_match "
            f"or a reward of your own. Allowed are {', '.join(sorted(ALLOWED))}."
        )


@cache
def _scorer(task: str) -> Any:
    return load_library().get_score_answer_fn(task)
