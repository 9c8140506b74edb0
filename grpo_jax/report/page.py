"""The report's page: the numbers first, then the plots, completions, and the config.

It reads what a run leaves in its folder (`training.records`), so it works while the run goes on, after a
crash, and on a folder copied from another machine.
"""

import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grpo_jax.report.drawing import Rows, draw, pass_at, values
from grpo_jax.report.plots import PLOTS
from grpo_jax.report.template import PAGE
from grpo_jax.statistics import compare
from grpo_jax.training.records import read_rows

MAX_TEXT = 1500
"""Characters of a prompt or completion shown in the page."""


def write_report(run_folder: Path | str) -> Path:
    """Writes `report.html` into the run folder and returns its path."""
    folder = Path(run_folder)
    rows = _metric_rows(folder)
    sections = [_result(folder, rows), *_plot_sections(rows), _samples(folder), _config(folder)]
    body = "\n".join(section for section in sections if section)
    name = html.escape(folder.resolve().name)
    page = PAGE.format(title=f"{name} · grpo_jax", heading=name, subtitle=_subtitle(rows), body=body)
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def _metric_rows(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    if not path.is_file():
        what = (
            "does not exist" if not folder.exists() else "is not the folder of a run: it has no metrics.jsonl"
        )
        raise ValueError(f"{folder} {what}")
    merged: dict[tuple[str, int], dict[str, Any]] = {}
    for row in read_rows(path):
        merged.setdefault((row["stage"], row["step"]), {}).update(row)
    return list(merged.values())


def _subtitle(rows: Rows) -> str:
    if not rows:
        return "No step has been recorded yet."
    stages = {row["stage"]: row["step"] for row in rows}
    seconds = sum(v for row in rows for name, v in row.items() if name.startswith("time/") and v)
    done = ", ".join(f"{stage.replace('_', ' ')} {step} steps" for stage, step in stages.items())
    return f"{done}; {_duration(seconds)} of measured time" if seconds else done


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    return (
        f"{seconds:.0f} s"
        if seconds < 90
        else f"{minutes:.0f} min"
        if minutes < 90
        else f"{minutes / 60:.1f} h"
    )


def _result(folder: Path, rows: Rows) -> str:
    """The numbers that answer "did it work?", before and after."""
    policy = [row for row in rows if row["stage"] == "policy"]
    tiles = []
    evaluations = [row for row in policy if row.get("eval/accuracy") is not None]
    if evaluations:
        tiles.append(
            _tile("held-out accuracy", [f"{row['eval/accuracy']:.1%}" for row in _ends(evaluations)])
        )
        largest = max(pass_at(evaluations[-1]), default=1)
        if largest > 1:
            found = [pass_at(row).get(largest) for row in _ends(evaluations)]
            tiles.append(_tile(f"pass@{largest}", [f"{value:.1%}" for value in found if value is not None]))
    for metric, label, form in (
        ("reward/mean", "training reward", "{:.3f}"),
        ("length/mean", "completion length, tokens", "{:.1f}"),
        ("entropy/mean", "entropy, nats per token", "{:.3f}"),
    ):
        _, y = values(policy, metric)
        if len(y):
            share = max(1, len(y) // 20)  # single steps are noisy: the first and the last twentieth
            ends = [y[:share].mean(), y[-share:].mean()] if len(y) > 1 else [y[0]]
            tiles.append(_tile(label, [form.format(value) for value in ends]))
    paired = _paired_sentence(folder)
    if not tiles:
        return ""
    return f'<section><div class="tiles">{"".join(tiles)}</div>{paired}</section>'


def _ends(items: Sequence[Any]) -> list[Any]:
    return [items[0], items[-1]] if len(items) > 1 else list(items)


def _tile(label: str, ends: Sequence[str]) -> str:
    before = f'<span class="before">{ends[0]} →</span> ' if len(ends) > 1 else ""
    return f'<div class="tile"><p>{label}</p><strong>{before}{ends[-1]}</strong></div>'


def _paired_sentence(folder: Path) -> str:
    """First against last evaluation of the policy stage on the same problems, if both were saved."""
    paths = sorted((folder / "evaluations").glob("policy_*.jsonl"))
    if len(paths) < 2:
        return ""
    before, after = (read_rows(path) for path in _ends(paths))
    if {(row["problem"], row["prompt"]) for row in before} != {
        (row["problem"], row["prompt"]) for row in after
    }:
        return ""  # other problems: nothing is paired
    first, second = verdicts(before), verdicts(after)
    result = compare(first, second)
    better = int((second.mean(axis=1) > first.mean(axis=1)).sum())
    worse = int((second.mean(axis=1) < first.mean(axis=1)).sum())
    low, high = (f"{100 * end:+.1f}" for end in result.interval)
    p_value = "p &lt; 0.001" if result.p_value < 0.001 else f"p = {result.p_value:.3f}"
    return (
        f"<p>On the same {result.problems} held-out problems accuracy changed by "
        f"<strong>{100 * result.difference:+.1f} points</strong> (95 % interval {low} to {high}; {p_value}, "
        f"paired permutation test): {better} problems are solved more often than at the first evaluation, "
        f"{worse} less often.</p>"
    )


def verdicts(completions: Rows) -> np.ndarray:
    """The [problems, samples] matrix of an evaluation's saved completions."""
    shape = [1 + max(row[axis] for row in completions) for axis in ("problem", "sample")]
    correct = np.zeros(shape, bool)
    for row in completions:
        correct[row["problem"], row["sample"]] = row["correct"]
    return correct


def _plot_sections(rows: Rows) -> list[str]:
    sections, missing = [], []
    for heading, plots in PLOTS.items():
        figures = []
        for plot in plots:
            svg = draw(plot, rows)
            if svg is None:
                missing.append(f"{plot.title} ({', '.join(line.metric for line in plot.lines)})")
            else:
                caption = f"<figcaption>{html.escape(plot.conclusion)}</figcaption>"
                figures.append(f"<figure><h3>{html.escape(plot.title)}</h3>{svg}{caption}</figure>")
        if figures:
            grid = f'<div class="grid">{"".join(figures)}</div>'
            sections.append(f"<section><h2>{html.escape(heading)}</h2>{grid}</section>")
    if sections:
        sections[0] += (
            '<p class="note">A pale line shows single steps, the bold one over it their running mean.</p>'
        )
    if missing:
        text = html.escape("; ".join(missing))
        sections.append(f'<p class="note">Not drawn, because this run has no such metric yet: {text}.</p>')
    return sections


def _samples(folder: Path) -> str:
    path = folder / "samples.jsonl"
    rows = [row for row in read_rows(path) if row["stage"] == "policy"] if path.is_file() else []
    if not rows:
        return '<p class="note">No sample completions have been recorded (samples.jsonl).</p>'
    tables = []
    for step in sorted({rows[0]["step"], rows[-1]["step"]}):
        body = "".join(_sample_row(row) for row in rows if row["step"] == step)
        head = "".join(
            f"<th>{name}</th>" for name in ("prompt", "completion", "reward", "advantage", "ended")
        )
        tables.append(
            f"<h3>Step {step}</h3><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )
    return f"<section><h2>Completions, early and late</h2>{''.join(tables)}</section>"


def _sample_row(row: Mapping[str, Any]) -> str:
    said = "".join(map(_turn, row.get("turns") or [{"role": "assistant", "content": row["completion"]}]))
    texts = f"<td><bdi>{html.escape(visible(row['prompt']))}</bdi></td><td>{said}</td>"
    reward, advantage = (
        "none" if row[name] is None else f"{row[name]:{form}}"
        for name, form in (("reward", ".3g"), ("advantage", "+.2f"))
    )
    sign = "" if not row["advantage"] else ' class="up"' if row["advantage"] > 0 else ' class="down"'
    ended = html.escape(row["stop_reason"])
    verdict = html.escape(", ".join(row.get("verdicts", {}).values()))
    reward += f" ({verdict})" if verdict else ""
    return f"<tr>{texts}<td>{reward}</td><td{sign}>{advantage}</td><td>{ended}</td></tr>"


def _turn(turn: Mapping[str, str]) -> str:
    """What the policy wrote; and after an arrow, set apart, what an environment answered."""
    text = f"<bdi>{html.escape(visible(turn['content']))}</bdi>"
    return text if turn["role"] == "assistant" else f"<br><em>⟵ {text}</em><br>"


def visible(text: str) -> str:
    """A model's text as a page can show it: cut to a length, control and direction characters spelt out."""
    cut = f" … ({len(text) - MAX_TEXT} more characters)" if len(text) > MAX_TEXT else ""
    hidden = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
    return re.sub(hidden, lambda match: f"⟨U+{ord(match.group()):04X}⟩", text[:MAX_TEXT]) + cut


def _config(folder: Path) -> str:
    path = folder / "config.py"
    if not path.is_file():
        return '<p class="note">The folder has no config.py.</p>'
    text = html.escape(path.read_text(encoding="utf-8", errors="replace"))
    return (
        f"<section><h2>Config</h2><details><summary>config.py</summary><pre>{text}</pre></details></section>"
    )
