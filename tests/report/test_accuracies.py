"""The picture of an evaluation: its numbers are where they should be."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from grpo_jax.evaluation.results import summarise
from grpo_jax.evaluation.tables import Results
from grpo_jax.report.accuracies import write_picture
from tests.evaluation.rows import rows, settings

CORRECT = [[1, 0], [1, 1], [0, 0]]


def results(*names, correct=CORRECT, baselines=None):
    found = tuple(summarise(n, rows(correct), settings(correct, votes=False)) for n in names)
    return Results("a model", found, Path("out"), baseline="b", baselines=baselines or {})


def test_every_suite_the_axes_and_the_baseline_are_labelled(tmp_path):
    baselines = {"aime": results("aime", correct=[[0, 0], [1, 0], [0, 0]])["aime"]}
    picture = results("aime", "gsm8k", baselines=baselines)
    text = "".join(ET.parse(write_picture(picture, tmp_path / "a.svg")).getroot().itertext())
    for part in ("aime", "gsm8k", "avg@2", "95 % interval", "pass@k", "maj@k", "baseline", "a model"):
        assert part in text, part


def test_one_sample_has_no_curve_and_the_same_results_the_same_file(tmp_path):
    one = results("aime", correct=[[1], [0]])
    first, second = (write_picture(one, tmp_path / name).read_text() for name in ("a.svg", "b.svg"))
    assert first == second and "pass@k" not in first


@pytest.mark.parametrize(("ending", "begins"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_the_ending_says_what_kind_of_file(tmp_path, ending, begins):
    assert write_picture(results("aime"), tmp_path / f"a.{ending}").read_bytes().startswith(begins)


def test_the_point_is_within_its_interval(tmp_path):
    svg = write_picture(results("aime"), tmp_path / "a.svg").read_text()
    line = re.search(r"LineCollection_1.*?M ([\d.]+) [\d.]+ *\n?L ([\d.]+)", svg, re.DOTALL)
    point = re.search(r'<use[^>]*x="([\d.]+)"[^>]*style="fill: #2b6a99', svg)
    assert float(line[1]) < float(point[1]) < float(line[2])
