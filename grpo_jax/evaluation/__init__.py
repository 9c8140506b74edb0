"""How good a model is, and how sure that is.

    summary    the numbers of one set of judged completions; training uses it between its steps
    model      `evaluate_model`: a run or a model on some suites
    subject    which model that is, and how it is asked
    suites     which problems, and who judges them
    jobs       what is sampled of a suite, and everything that decides how it turns out
    judging    sampling and judging it
    ledger     every judged completion, on disk as it is judged, so that a killed evaluation goes on
    results    avg@k, pass@k and maj@k with intervals, from the judged completions alone
    strata     accuracy by difficulty
    tables     the results as a paper prints them: text, LaTeX
    command    the options of `grpo-jax eval`

The package itself holds the summary only: the rest stands on training, which stands on the summary.
"""

from grpo_jax.evaluation.summary import Evaluation, evaluate, summarize

__all__ = ["Evaluation", "evaluate", "summarize"]
