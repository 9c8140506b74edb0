"""Plots as SVG: parsed back, with the numbers where they should be."""

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from grpo_jax.report.drawing import draw, expand, pass_at, smooth, values
from grpo_jax.report.plots import PLOTS, Line, Plot
from grpo_jax.training.records import read_rows
from tests.report.run_folder import write_run

ALL = {plot.title: plot for plots in PLOTS.values() for plot in plots}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return read_rows(write_run(tmp_path_factory.mktemp("run")) / "metrics.jsonl")


@pytest.mark.parametrize("title", ALL)
def test_every_plot_is_one_well_formed_element_with_its_labels(rows, title):
    plot = ALL[title]
    svg = draw(plot, rows)
    root = ET.fromstring(svg)
    assert root.tag.endswith("svg")
    text = "".join(root.itertext())
    assert plot.unit in text
    assert "k, attempts" in text if plot.kind == "by_k" else "step" in text
    if len(expand(plot.lines, rows)) > 1:
        drawn = [line.label for line in plot.lines if len(values(rows, line.metric)[0])]
        assert all(label in text for label in drawn)


def test_the_same_run_gives_the_same_drawing(rows):
    plot = ALL["Completion length by sign of the advantage"]
    assert draw(plot, rows) == draw(plot, rows)


def test_every_plot_says_what_to_conclude():
    assert all(plot.conclusion.endswith(".") and len(plot.conclusion) > 60 for plot in ALL.values())


@pytest.mark.parametrize("plot", ALL.values(), ids=ALL)
def test_a_plot_without_its_metrics_is_left_out(plot):
    rows = [{"step": 1, "stage": plot.stage, "other": 1.0}, *({"step": 2, "stage": plot.stage},) * 3]
    assert draw(plot, rows) is None
    assert draw(plot, []) is None


ONE_OF_EACH_KIND = {plot.kind: plot for plot in ALL.values()}


@pytest.mark.parametrize("plot", ONE_OF_EACH_KIND.values(), ids=ONE_OF_EACH_KIND)
def test_one_step_and_missing_values_can_be_drawn(plot, rows):
    last = [row for row in rows if row["stage"] == plot.stage][-1]
    nothing_measured = dict.fromkeys(last) | {"step": last["step"] + 1, "stage": plot.stage}
    assert plot.unit in "".join(ET.fromstring(draw(plot, [last, nothing_measured])).itertext())


def test_only_the_plots_own_stage_is_drawn():
    plot = Plot("T", "conclusion", "unit", (Line("grad/norm"),))
    rows = [{"step": 1, "stage": "warm_start", "grad/norm": 1.0}]
    assert draw(plot, rows) is None


def test_values_leave_out_what_was_not_measured():
    rows = [{"step": 1, "x": 2.0}, {"step": 2, "x": None}, {"step": 3}, {"step": 4, "x": 0.0}]
    steps, y = values(rows, "x")
    np.testing.assert_array_equal(steps, [1, 4])
    np.testing.assert_array_equal(y, [2, 0])
    assert [len(part) for part in values([], "x")] == [0, 0]


def test_reward_functions_are_drawn_apart_when_there_are_several():
    plot = ALL["Reward"]
    one = {"step": 1, "stage": "policy", "reward/mean": 0.5, "rewards/exact_match/mean": 0.5}
    assert [line.metric for line in expand(plot.lines, [one])] == ["reward/mean"]
    two = [one, one | {"step": 2, "rewards/format/mean": 0.1}]
    assert [line.label for line in expand(plot.lines, two)] == ["weighted sum", "exact_match", "format"]
    assert "format" in "".join(ET.fromstring(draw(plot, two)).itertext())


def test_pass_at_reads_k_as_numbers_in_order():
    row = {"eval/pass@16": 0.9, "eval/pass@2": 0.5, "eval/pass@4": None, "eval/accuracy": 0.4}
    assert pass_at(row) == {2: 0.5, 16: 0.9}
    assert list(pass_at(row)) == [2, 16]


def test_smoothing_keeps_short_and_straight_series_and_averages_noise():
    short = np.array([3.0, 1.0, 2.0])
    np.testing.assert_allclose(smooth(short), short)
    line = np.arange(100.0)
    np.testing.assert_allclose(smooth(line)[2:-2], line[2:-2])
    spike = np.zeros(100)
    spike[50] = 5.0  # the window is 100 // 40 = 2 to either side
    np.testing.assert_allclose(smooth(spike)[46:55], [0, 0, 1, 1, 1, 1, 1, 0, 0])
