"""A picture of an evaluation: accuracy with its interval per suite, and what more samples would solve."""

import itertools
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpo_jax.evaluation.results import Estimate
from grpo_jax.evaluation.tables import Results
from grpo_jax.report.drawing import STYLE
from grpo_jax.report.plots import BLUE, GREY, OTHERS


def write_picture(results: Results, path: Path) -> Path:
    """Draws the results into a file whose ending says what kind: .svg, .png or .pdf."""
    wide = results.suites[0].samples > 1
    with matplotlib.rc_context(STYLE):
        height = max(2.6, 1.2 + 0.45 * len(results.suites))
        figure = Figure(figsize=(8.2 if wide else 4.4, height), layout="constrained")
        left, *right = figure.subplots(1, 2 if wide else 1, squeeze=False)[0]
        _accuracies(left, results)
        for axes in right:
            _by_k(axes, results)
        figure.suptitle(results.title, fontsize=9)
        metadata = {"Date": None} if path.suffix == ".svg" else {}  # the same results give the same file
        figure.savefig(path, dpi=160, facecolor="white", metadata=metadata)
    return path


def _accuracies(axes: Axes, results: Results) -> None:
    """A point and its interval per suite, the first on top; the baseline's below its own."""
    for i, suite in enumerate(results.suites):
        _point(axes, suite.accuracy, i, color=BLUE, label=results.model if i == 0 else None)
        if suite.name in results.baselines:
            before = results.baselines[suite.name].accuracy
            _point(axes, before, i + 0.25, color=GREY, label="baseline" if i == 0 else None)
    axes.set_yticks(range(len(results.suites)), [suite.name for suite in results.suites])
    axes.set_ylim(len(results.suites) - 0.5, -0.5)
    axes.set_xlim(-2, 102)
    axes.set_xlabel(f"avg@{results.suites[0].samples}, % (95 % interval)")
    if results.baselines:
        axes.legend(loc="best")


def _point(axes: Axes, estimate: Estimate, y: float, *, color: str, label: str | None) -> None:
    value, low, high = (100 * x for x in estimate)
    axes.hlines(y, low, high, color=color, linewidth=2.2)
    axes.plot([value], [y], "o", color=color, markersize=5, label=label)


def _by_k(axes: Axes, results: Results) -> None:
    """pass@k and, dashed, maj@k by k."""
    for suite, color in zip(results.suites, itertools.cycle((BLUE, *OTHERS)), strict=False):
        for estimates, style in ((suite.pass_at, "o-"), (suite.maj_at, "s--")):
            if estimates:
                values = [100 * estimate.value for estimate in estimates.values()]
                label = suite.name if style == "o-" else None
                axes.plot([*estimates], values, style, color=color, markersize=3.5, label=label)
    ks = [*results.suites[0].pass_at]
    axes.set_xscale("log", base=2)
    axes.set_xticks(ks, [str(k) for k in ks])
    axes.xaxis.minorticks_off()
    axes.set_ylim(-2, 102)
    axes.set_xlabel("k (line: pass@k, dashed: maj@k)")
    axes.set_ylabel("%")
    if len(results.suites) > 1:
        axes.legend(loc="best")
