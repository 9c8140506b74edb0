"""The report as a reader and a browser meet it: complete, self-contained, and safe with any model output."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from grpo_jax.report import write_report
from grpo_jax.report.page import MAX_TEXT, verdicts, visible
from grpo_jax.report.plots import PLOTS
from grpo_jax.training.metrics import MetricWriter
from tests.report.run_folder import write_run

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Collects tags, attributes and text, and checks that tags close in order."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text, self.open = [], [], "", []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = write_run(tmp_path_factory.mktemp("run"))
    path = write_report(folder)
    assert path == folder / "report.html"
    return path.read_text(encoding="utf-8")


def test_the_report_needs_nothing_from_outside(report):
    page = Page(report)
    assert not {"script", "link", "img", "iframe", "object", "base"} & set(page.tags)
    references = [value for name, value in page.attributes if name in ("href", "src", "xlink:href", "srcset")]
    assert all(value.startswith("#") for value in references)
    assert re.findall(r"url\((?!#)|@import", report) == []
    ids = [value for name, value in page.attributes if name == "id"]
    assert all(f'"#{i}"' in report or f"url(#{i})" in report for i in ids)


def test_the_report_shows_every_plot_with_its_conclusion(report):
    page = Page(report)
    plots = [plot for group in PLOTS.values() for plot in group]
    assert page.tags.count("svg") == page.tags.count("figure") == len(plots)
    text = " ".join(page.text.split())
    for plot in plots:
        assert plot.title in text
        assert plot.conclusion in text
    assert "Not drawn" not in text


def test_the_result_comes_first_with_its_certainty(report):
    text = " ".join(Page(report).text.split())
    assert "held-out accuracy25.0% → 75.0%" in text
    assert "pass@4100.0% → 100.0%" in text
    assert "On the same 40 held-out problems accuracy changed by +50.0 points (95 % interval" in text
    assert "p < 0.001, paired permutation test): 40 problems are solved more often" in text
    assert text.index("+50.0 points") < text.index("Completions, early and late")


def test_model_output_and_config_are_shown_not_run(report):
    page = Page(report)
    assert "alert(" in page.text
    assert "script" not in page.tags
    assert "answer at step 1" in page.text
    assert "answer at step 4" in page.text
    assert "answer at step 2" not in page.text
    assert 'folder="<runs>"' in page.text
    assert not re.search("[\x00-\x08\u202a-\u202e]", report)


def test_hidden_characters_are_spelt_out_and_long_text_is_cut():
    assert visible("a\x00b\u202ec\ud800\n\t") == "a⟨U+0000⟩b⟨U+202E⟩c⟨U+D800⟩\n\t"
    assert visible("x" * (MAX_TEXT + 7)) == "x" * MAX_TEXT + " … (7 more characters)"


def test_a_partial_run_gets_a_report_that_says_what_is_missing(tmp_path):
    with MetricWriter(tmp_path) as metrics:
        metrics.write({"reward/mean": 0.5}, step=1, stage="policy")
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "rew')  # still being written
    page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
    text = " ".join(page.text.split())
    assert page.tags.count("svg") == 1
    assert "Not drawn, because this run has no such metric yet: Held-out accuracy (eval/accuracy)" in text
    assert "No sample completions" in text
    assert "no config.py" in text


def test_a_run_without_a_step_gets_a_report(tmp_path):
    MetricWriter(tmp_path).close()
    assert "No step has been recorded yet." in write_report(tmp_path).read_text(encoding="utf-8")


def test_rows_of_one_step_are_read_together(tmp_path):
    with MetricWriter(tmp_path) as metrics:
        metrics.write({"reward/mean": 0.5}, step=1, stage="policy")
        metrics.write({"entropy/mean": 0.5}, step=1, stage="policy")
    page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
    assert page.tags.count("svg") == 2


def test_evaluations_of_other_problems_are_not_paired(tmp_path):
    write_run(tmp_path)
    path = tmp_path / "evaluations" / "policy_000004.jsonl"
    path.write_text(path.read_text().replace("39+1=", "39+2="))
    assert "On the same" not in write_report(tmp_path).read_text(encoding="utf-8")


def test_verdicts_come_back_in_any_order_of_rows():
    rows = [{"problem": i, "sample": j, "correct": (i, j) == (1, 0)} for i in range(2) for j in range(3)]
    expected = np.array([[0, 0, 0], [1, 0, 0]], bool)
    np.testing.assert_array_equal(verdicts(rows[::-1]), expected)


def test_a_folder_that_is_no_run_is_named(tmp_path):
    with pytest.raises(ValueError, match="nowhere does not exist"):
        write_report(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"is not the folder of a run: it has no metrics\.jsonl"):
        write_report(tmp_path)
