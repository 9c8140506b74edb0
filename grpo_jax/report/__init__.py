"""The report of a run: `write_report(run_folder)` makes one HTML file that needs nothing else.

`plots` says what is drawn and what to conclude from it, `drawing` draws it, `page` puts the page together.
"""

from grpo_jax.report.page import write_report

__all__ = ["write_report"]
