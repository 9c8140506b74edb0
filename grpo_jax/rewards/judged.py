"""A reward that says why."""


class Judged(float):
    """A number with the verdict it stands for, which is recorded with the completion."""

    verdict: str

    def __new__(cls, value: float, verdict: str) -> "Judged":
        judged = super().__new__(cls, value)
        judged.verdict = verdict
        return judged
