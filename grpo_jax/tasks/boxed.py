r"""Answers in boxes: the content of \boxed{…}, in a reference solution or a completion."""

import re

BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s*")
MAX_UNBRACED = 300
"""Characters of a longest content without braces."""


def last_boxed(text: str) -> tuple[str | None, bool]:
    r"""The content of the last box that is not empty, and whether the last was never closed."""
    for match in reversed(list(BOX.finditer(text))):
        start = match.end()
        if text[start : start + 1] == "{":
            end = closing_brace(text, start)
            if end is None:
                return None, True
            content = text[start + 1 : end].strip()
        else:
            content = re.split(r"[\s$]", text[start : start + MAX_UNBRACED], maxsplit=1)[0].rstrip(".,;")
        if content:
            return content, False
    return None, False


def closing_brace(text: str, start: int) -> int | None:
    """Index of the brace that closes the one at `start`; escaped braces do not count."""
    depth = 0
    for match in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return match.start()
    return None
