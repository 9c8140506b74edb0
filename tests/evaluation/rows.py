"""Rows of a ledger made by hand: verdicts and votes as a person writes them down."""


def rows(correct, extracted=None, *, difficulty=None, prompts=None):
    """One row for each verdict of the [problems][samples] table."""
    return [
        {
            "problem": i,
            "sample": j,
            "prompt": prompts[i] if prompts else f"question {i}",
            "answer": str(i),
            "difficulty": difficulty[i] if difficulty else None,
            "completion": "",
            "extracted": extracted[i][j] if extracted else None,
            "verdict": None,
            "score": float(verdict),
            "correct": bool(verdict),
            "length": 10 + j,
            "truncated": j == 0,
        }
        for i, line in enumerate(correct)
        for j, verdict in enumerate(line)
    ]


def settings(correct, **changes):
    """What the ledger of such rows was made with."""
    return {
        "task": "sums",
        "problems": len(correct),
        "samples": len(correct[0]),
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "logit_bias": [],
        "forbidden_ids": [],
        "max_tokens": 20,
        "seed": 0,
        "chat": False,
        "votes": True,
    } | changes
