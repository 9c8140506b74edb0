"""How good a model is, and how sure that is.

    summary    the numbers of one set of judged completions; training uses it between its steps
    suites     which problems, and who judges them
    ledger     every judged completion, on disk as it is judged, so that a killed evaluation goes on
    model      `evaluate_model`: a run or a model on some suites
    results    avg@k, pass@k, maj@k, strata and comparisons, from the judged completions alone
    tables     the results as a paper prints them: text, LaTeX

The package itself holds the summary only: the rest stands on training, which stands on the summary.
"""

from grpo_jax.evaluation.summary import Evaluation, evaluate, summarize

__all__ = ["Evaluation", "evaluate", "summarize"]
