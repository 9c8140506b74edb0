"""Draws a plot of `plots` to an SVG element, from the metric rows of a run."""

import html
import io
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from grpo_jax.report.plots import BLUE, GREY, OTHERS, Line, Plot

STYLE = {
    "svg.fonttype": "none",  # text stays text: the page's own font, and readable by a screen reader
    "svg.hashsalt": "grpo_jax",  # the same run gives the same file
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#b9bec5",
    "axes.labelcolor": "#434a54",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#eceef1",
    "xtick.color": "#5c6470",
    "ytick.color": "#5c6470",
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "lines.linewidth": 1.7,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.handlelength": 1.2,
    "legend.columnspacing": 1.4,
}

Rows = Sequence[Mapping[str, Any]]


def values(rows: Rows, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values of a metric, where it was measured."""
    points = [(row["step"], row[metric]) for row in rows if row.get(metric) is not None]
    return tuple(np.asarray(points, float).reshape(-1, 2).T)


def pass_at(row: Mapping[str, Any]) -> dict[int, float]:
    """k -> pass@k of one evaluation's row."""
    found = {name.removeprefix("eval/pass@"): value for name, value in row.items() if value is not None}
    return {int(k): found[k] for k in sorted((k for k in found if k.isdigit()), key=int)}


def draw(plot: Plot, rows: Rows) -> str | None:
    """The plot as an SVG element, or None if the run has none of its metrics."""
    rows = [row for row in rows if row["stage"] == plot.stage]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.4, 2.7), layout="constrained")
        axes = figure.add_subplot()
        if not _DRAW[plot.kind](axes, plot, rows):
            return None
        axes.set_ylabel(plot.unit)
        if plot.kind != "by_k":
            axes.set_xlabel("step")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
        if plot.reference is not None:
            axes.axhline(plot.reference, color="#8b929b", linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        if plot.percent:
            axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g}%")
        axes.margins(x=0.02)
        if len(axes.get_legend_handles_labels()[0]) > 1:
            axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=5, borderaxespad=0.2)
        return _svg(figure, f"{plot.title}: {plot.unit} by {'k' if plot.kind == 'by_k' else 'step'}")


def _svg(figure: Figure, description: str) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    # Several plots share a page: drop the ids nothing refers to, and leave the width to the page.
    text = re.sub(r' id="[a-zA-Z0-9.]+_\d+"', "", text)
    head = re.search(r"<svg[^>]*>", text).group()
    box = re.search(r'viewBox="[^"]*"', head).group()
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" {box} '
    return f'{opening}role="img" aria-label="{html.escape(description)}">{text[len(head) :]}'


def expand(lines: Sequence[Line], rows: Rows) -> list[Line]:
    """The lines with each * replaced by what the run has; a single match says what the plot says already."""
    expanded = []
    for line in lines:
        if "*" not in line.metric:
            expanded.append(line)
            continue
        before, after = line.metric.split("*")
        found = {name for row in rows for name in row if name.startswith(before) and name.endswith(after)}
        if len(found) > 1:
            labels = [name.removeprefix(before).removesuffix(after) for name in sorted(found)]
            named = zip(labels, itertools.cycle(OTHERS), strict=False)
            expanded += [Line(before + label + after, label, color) for label, color in named]
    return expanded


def smooth(y: np.ndarray) -> np.ndarray:
    """Mean over a window of a twentieth of the points around each, so that noise does not hide the trend."""
    half = len(y) // 40
    sums = np.concatenate([[0.0], np.cumsum(y)])
    low = np.maximum(np.arange(len(y)) - half, 0)
    high = np.minimum(np.arange(len(y)) + half + 1, len(y))
    return (sums[high] - sums[low]) / (high - low)


def _lines(axes: Axes, plot: Plot, rows: Rows) -> bool:
    drawn = False
    for line in expand(plot.lines, rows):
        x, y = values(rows, line.metric)
        if not len(x):
            continue
        drawn = True
        marker = "o" if len(x) < 12 else None
        if len(y) >= 40:
            axes.plot(x, y, color=line.color, alpha=0.25, linewidth=0.8)
        axes.plot(x, smooth(y), color=line.color, label=line.label, marker=marker, markersize=3.5)
    return drawn


def _band(axes: Axes, plot: Plot, rows: Rows) -> bool:
    metric = plot.lines[0].metric
    names = (metric, f"{metric}_low", f"{metric}_high")
    points = [(row["step"], *(row[name] for name in names)) for row in rows if _has(row, names)]
    if not points:
        return False
    x, y, low, high = np.asarray(points, float).T
    axes.fill_between(x, low, high, color=BLUE, alpha=0.16, linewidth=0)
    axes.vlines(x, low, high, color=BLUE, linewidth=0.8, alpha=0.5)
    axes.plot(x, y, color=BLUE, marker="o", markersize=3.5)
    return True


def _stack(axes: Axes, plot: Plot, rows: Rows) -> bool:
    lines = [line for line in plot.lines if any(_has(row, [line.metric]) for row in rows)]
    rows = [row for row in rows if any(_has(row, [line.metric]) for line in lines)]
    if not rows:
        return False
    # At most 80 steps are told apart: beyond that, each column is the mean of a run of steps.
    bins = np.array_split(np.arange(len(rows)), min(len(rows), 80))
    edges = [rows[index[0]]["step"] - 0.5 for index in bins] + [rows[-1]["step"] + 0.5]
    base = np.zeros(len(bins))
    for line in lines:
        y = np.array([row.get(line.metric) or 0.0 for row in rows])  # a phase that did not run took no time
        top = base + [y[index].mean() for index in bins]
        axes.stairs(top, edges, baseline=base, fill=True, color=line.color, label=line.label, alpha=0.85)
        base = top
    axes.set_ylim(bottom=0)
    return True


def _by_k(axes: Axes, plot: Plot, rows: Rows) -> bool:
    evaluations = [row for row in rows if len(pass_at(row)) > 1]
    if not evaluations:
        return False
    ends = {row["step"]: row for row in (evaluations[0], evaluations[-1])}
    for (step, row), color in zip(ends.items(), (GREY, BLUE), strict=False):
        found = pass_at(row)
        axes.plot(*zip(*found.items(), strict=True), "o-", color=color, markersize=4, label=f"step {step}")
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(found), [str(k) for k in found])
    axes.xaxis.minorticks_off()
    axes.set_xlabel("k, attempts per problem")
    return True


def _has(row: Mapping[str, Any], names: Sequence[str]) -> bool:
    return all(row.get(name) is not None and math.isfinite(row[name]) for name in names)


_DRAW = {"lines": _lines, "band": _band, "stack": _stack, "by_k": _by_k}
