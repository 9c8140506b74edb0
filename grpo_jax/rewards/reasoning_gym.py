"""reasoning-gym's own scorers, called so that they can neither be fooled nor do harm.

They pay for a text that merely contains the answer, so the answer is extracted first and only a full score
counts. Nine of them run the answer as code: five let sympy evaluate it, four call eval. Their answers must
first be read as nothing but arithmetic, or nothing but a literal. Every scorer that is more than a
comparison runs in a worker process with limits. Tasks that are in no list here were not read, and are
refused.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from grpo_jax.rewards import reasoning_gym_worker
from grpo_jax.rewards.extraction import marked_answer
from grpo_jax.rewards.pool import Limits, OutOfBounds, Pool
from grpo_jax.tasks.reasoning_gym import load_library
from grpo_jax.types import Problem

# The library's base class: text that is equal, or contained.
TEXT = (
    "acre aiw arc_1d base_conversion basic_arithmetic bf binary_alternation caesar_cipher count_bits "
    "count_primes course_schedule gcd isomorphic_strings largest_island lcm leg_counting "
    "letter_counting list_functions mahjong_puzzle maze modulo_grid number_filtering number_sequence "
    "ransom_note rotate_matrix rotten_oranges simple_equations simple_geometry string_manipulation "
    "string_splitting string_synthesis syllogism word_sequence_reversal"
)
# A scorer of their own that compares text or plain numbers, in bounded time.
PLAIN = (
    "ab calendar_arithmetic chain_sum circuit_logic color_cube_rotation decimal_arithmetic "
    "decimal_chain_sum dice emoji_mystery family_relationships gsm_symbolic letter_jumble "
    "needle_haystack number_format path_star power_function products self_reference spell_backward "
    "word_sorting zebra_puzzles"
)
# A scorer that parses or simulates, but never runs the answer.
LIMITED = (
    "advanced_geometry arc_agi bitwise_arithmetic boxnet codeio complex_arithmetic cryptarithm "
    "figlet_font fraction_simplification futoshiki game_of_life graph_color group_anagrams jugs "
    "kakurasu knight_swap knights_knaves manipulate_matrix mini_sudoku number_sorting "
    "palindrome_generation palindrome_partitioning polynomial_equations pool_matrix prime_factorization "
    "propositional_logic quantum_lock rearc rectangle_count rubiks_cube rush_hour sentence_reordering "
    "shortest_path sokoban sudoku survo time_intervals tower_of_hanoi tsumego word_ladder"
)
LITERAL = "string_insertion spiral_matrix binary_matrix n_queens"
ARITHMETIC = "simple_integration intermediate_integration polynomial_multiplication puzzle24 countdown"

HOW = {
    **dict.fromkeys((*TEXT.split(), *PLAIN.split()), "here"),
    **dict.fromkeys(LIMITED.split(), "limited"),
    **dict.fromkeys(LITERAL.split(), "literal"),
    **dict.fromkeys(ARITHMETIC.split(), "arithmetic"),
}
REFUSED = {
    "game_of_life_halting": "its scorer pays for any text where the answer is False",
    "coin_flip": "its scorer pays for the first digits of the answer",
}

MAX_ANSWER = 4_000
"""Characters of a longest answer; a longer one is wrong."""
MAX_EXPONENT = 100
FUNCTIONS = (
    *("sin", "cos", "tan", "exp", "log", "ln", "sqrt", "asin", "acos", "atan"),
    *("sinh", "cosh", "tanh", "sec", "csc", "cot"),
)


def reasoning_gym_all(
    problems: Sequence[Problem], completions: Sequence[str], *, partial_credit: bool = False
) -> list[float | Exception]:
    """The task's own score of a completion's answer: 1 or 0, or the score itself with `partial_credit`."""
    scores: list[Any] = [None] * len(problems)
    jobs = {}
    for n, (problem, completion) in enumerate(zip(problems, completions, strict=True)):
        try:
            task, entry = _task(problem)
            # Many answers are words or grids, so without a mark the whole completion is the answer.
            answer = marked_answer(completion) or completion.strip()
            if len(answer) > MAX_ANSWER or not is_harmless(answer, HOW[task]):
                scores[n] = float(
                    answer.strip() == problem.answer.strip() != "" and len(answer) <= MAX_ANSWER
                )
            elif HOW[task] == "here":
                scores[n] = reasoning_gym_worker.score(task, answer, entry)
            else:
                jobs[n] = (task, answer, entry)
        except Exception as error:
            scores[n] = error
    if jobs:
        for n, result in zip(
            jobs, _workers().map(reasoning_gym_worker.score, list(jobs.values())), strict=True
        ):
            # A scorer that fails on an answer, or does not come to an end with it, was given a wrong one.
            scores[n] = 0.0 if isinstance(result, Exception | OutOfBounds) else result
    return [s if partial_credit or isinstance(s, Exception) else float(s == 1.0) for s in scores]


def check_problems(problems: Sequence[Problem]) -> Iterator[tuple[int, str]]:
    """Which problems are of no task whose scorer may be called."""
    for i, problem in enumerate(problems):
        try:
            _task(problem)
        except ValueError as error:
            yield i, str(error)


def start() -> None:
    """Raise if the library is not there."""
    load_library()


def is_harmless(answer: str, how: str) -> bool:
    """Whether an answer is nothing but what its scorer may evaluate."""
    if how not in ("literal", "arithmetic"):
        return True
    try:
        tree = ast.parse(answer.strip(), mode="eval").body
        return all(map(_is_literal if how == "literal" else _is_arithmetic, ast.walk(tree)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _is_literal(node: ast.AST) -> bool:
    return isinstance(node, ast.List | ast.Tuple | ast.Constant | ast.Load | ast.UnaryOp | ast.USub)


def _is_arithmetic(node: ast.AST) -> bool:
    match node:
        case ast.Constant():
            return isinstance(node.value, int | float) and abs(node.value) < 1e15
        case ast.Name():
            return node.id in FUNCTIONS or len(node.id) == 1 or node.id == "pi"
        case ast.Call():
            return isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS and not node.keywords
        case ast.BinOp(op=ast.Pow()):
            inside = list(ast.walk(node.right))
            small = all(abs(n.value) <= MAX_EXPONENT for n in inside if isinstance(n, ast.Constant))
            return small and not any(isinstance(n, ast.Pow) for n in inside)
    operators = ast.Add | ast.Sub | ast.Mult | ast.Div | ast.Pow | ast.USub | ast.UAdd
    return isinstance(node, ast.BinOp | ast.UnaryOp | ast.Load | operators)


def _task(problem: Problem) -> tuple[str, Mapping[str, Any]]:
    task, entry = problem.metadata.get("task"), problem.metadata.get("entry")
    if task is None or entry is None:
        raise ValueError(
            "the problem is not one of reasoning-gym; use data.ReasoningGymData or another reward"
        )
    if task not in HOW:
        reason = REFUSED.get(task, "its scorer was not checked")
        raise ValueError(
            f"reward reasoning_gym: {task} is not allowed, because {reason}. Use exact_match, number_match "
            f"or a reward of your own. Allowed are {', '.join(sorted(HOW))}."
        )
    return task, entry


@cache
def _workers() -> Pool:
    return Pool(limits=Limits(), initializer=reasoning_gym_worker.start)
