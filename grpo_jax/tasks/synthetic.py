"""Arithmetic on whole numbers: an endless task that a model of a million parameters can learn."""

import operator
import random
from collections.abc import Sequence

from grpo_jax.tasks.splitting import TaskSplit, split
from grpo_jax.types import Message, Problem

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def carries(a: int, b: int, operation: str) -> int:
    """Columns that carry in a + b, or borrow in a − b with a ≥ b."""
    count, carry = 0, 0
    while a or b:
        a, digit_a = divmod(a, 10)
        b, digit_b = divmod(b, 10)
        carry = int(digit_a + digit_b + carry > 9 if operation == "+" else digit_a - digit_b - carry < 0)
        count += carry
    return count


def arithmetic(
    *,
    operations: Sequence[str],
    max_digits: int,
    carries_required: bool,
    size: int,
    held_out_fraction: float,
    max_terms: int = 2,
    prompt: str = "{question}=",
    system_prompt: str | None = None,
) -> TaskSplit:
    """Problems such as "37+85=" with the answer "122", operands uniform over 0 … 10**max_digits − 1.

    A subtraction puts the larger number first, so that every answer is a whole number. Products have no carry
    rule. A sum of several numbers carries as often as adding them one by one does.
    """
    _check(
        operations=operations,
        max_digits=max_digits,
        carries_required=carries_required,
        size=size,
        max_terms=max_terms,
        prompt=prompt,
    )
    draws = random.Random(0)
    problems = []
    while len(problems) < size:
        operation = draws.choice(operations)
        terms = draws.randint(2, max_terms) if operation == "+" and max_terms > 2 else 2
        numbers = [draws.randrange(10**max_digits) for _ in range(terms)]
        if operation == "-":
            numbers.sort(reverse=True)
        value, columns = numbers[0], 0
        for number in numbers[1:]:
            columns += carries(value, number, operation) if operation != "*" else 0
            value = OPERATIONS[operation](value, number)
        if carries_required and operation != "*" and not columns:
            continue
        question = operation.join(map(str, numbers))
        metadata = {
            "question": question,
            "operation": operation,
            "digits": len(str(max(numbers))),
            "carries": columns,
        }
        text = prompt.replace("{question}", question)
        chat = (Message("system", system_prompt), Message("user", text))
        problems.append(Problem(text if system_prompt is None else chat, str(value), metadata))
    return split(problems, held_out_fraction)


def _check(
    *,
    operations: Sequence[str],
    max_digits: int,
    carries_required: bool,
    size: int,
    max_terms: int,
    prompt: str,
) -> None:
    unknown = [name for name in operations if name not in OPERATIONS]
    if unknown or not operations:
        raise ValueError(f"data.operations is {tuple(operations)}, expected some of {', '.join(OPERATIONS)}.")
    if not 1 <= max_digits <= 100:
        raise ValueError(f"data.max_digits is {max_digits}, expected 1 to 100.")
    if max_terms < 2:
        raise ValueError(f"data.max_terms is {max_terms}, expected at least 2.")
    if "{question}" not in prompt:
        raise ValueError(f"data.prompt is {prompt!r}, expected a text with {{question}} in it.")
    if size < 1:
        raise ValueError(f"data.size is {size}, expected at least 1.")
    if carries_required and "-" in operations and max_digits == 1:
        raise ValueError(
            "data.carries is 'required', but one-digit differences never borrow; raise data.max_digits."
        )
