"""Every preset reads rows of the layouts it names, and says where its data is expected."""

import base64
import json
import pickle
import zlib

import pytest

from grpo_jax.config import PresetData
from grpo_jax.rewards.code import find_tests
from grpo_jax.rewards.math import unparseable_golds
from grpo_jax.rewards.scoring import BUILTINS
from grpo_jax.tasks import build
from grpo_jax.tasks.presets import PRESETS, evaluation_problems
from tests.shared import shared

CASES = [{"input": "1\n", "output": "2", "testtype": "stdin"}]
PACKED = base64.b64encode(zlib.compress(pickle.dumps(json.dumps(CASES)))).decode()
DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\nWhat is 1+1?\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)

# A row of each layout: what the prompt must hold, and the answer.
ROWS = {
    "gsm8k": ({"question": "Q?", "answer": "So.\n#### 1,080"}, "Q?", "1,080"),
    "math": (
        {"problem": "Q?", "solution": r"so $\boxed{\frac{1}{2}}$.", "level": "Level 5"},
        "Q?",
        r"\frac{1}{2}",
    ),
    "math500": ({"problem": "Q?", "solution": "s", "answer": r"\frac{1}{2}"}, "Q?", r"\frac{1}{2}"),
    "dapo17k": (
        {"prompt": [{"role": "user", "content": DAPO}], "reward_model": {"ground_truth": "2"}},
        "What is 1+1?\n\nReason",
        "2",
    ),
    "polaris": ({"problem": "Q?", "answer": "7", "difficulty": "3/8"}, "Q?", "7"),
    "svamp": ({"Body": "Some text.", "Question": "Q?", "Answer": 5.0}, "Some text. Q?", "5"),
    "aime24": ({"problem": "Q?", "answer": "025"}, "Q?", "025"),
    "aime25": ({"problem": "Q?", "answer": 70}, "Q?", "70"),
    "amc23": ({"question": "Q?", "answer": 27.0}, "Q?", "27"),
    "minerva": ({"question": "Q?", "answer": "3.1e5"}, "Q?", "3.1e5"),
    "olympiadbench": ({"question": "Q?", "final_answer": ["2", "$3$"]}, "Q?", "2, $3$"),
    "hmmt25": ({"problem_idx": 1, "problem": "Q?", "answer": r"\sqrt{2}"}, "Q?", r"\sqrt{2}"),
    "humaneval": (
        {
            "prompt": "def f(x):\n",
            "canonical_solution": "    return 1",
            "test": "def check(f): pass",
            "entry_point": "f",
        },
        "def f(x):\n",
        "return 1",
    ),
    "mbpp": (
        {"text": "Write f.", "code": "def f(): return 1", "test_list": ["assert f() == 1"]},
        "assert f() == 1",
        "def f(): return 1",
    ),
    "livecodebench": (
        {"question_content": "Q?", "public_test_cases": json.dumps(CASES), "private_test_cases": PACKED},
        "Q?",
        "",
    ),
}


def test_every_preset_is_tried():
    assert ROWS.keys() == PRESETS.keys()


@pytest.mark.parametrize("name", PRESETS)
def test_reads_its_layout(name, tmp_path):
    row, asked, answer = ROWS[name]
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    (problem,) = build(PresetData(name, path=str(tmp_path / "rows.jsonl"), held_out_fraction=0)).train
    assert asked in problem.prompt and problem.answer == answer
    if PRESETS[name].reward == "code":
        assert find_tests(problem)
    else:
        assert "\\boxed{}" in problem.prompt and unparseable_golds([problem.answer]) == []


@pytest.mark.parametrize("name", PRESETS)
def test_says_where_its_data_is_expected(name, monkeypatch, tmp_path):
    preset = PRESETS[name]
    assert preset.reward in BUILTINS
    monkeypatch.delenv("GRPO_JAX_DATA", raising=False)
    with pytest.raises(
        ValueError, match=rf"the preset {name} expects .* GRPO_JAX_DATA .*hf://datasets/"
    ) as caught:
        build(PresetData(name))
    assert preset.file in str(caught.value) and preset.hub in str(caught.value)
    monkeypatch.setenv("GRPO_JAX_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=str(tmp_path)):
        build(PresetData(name))


@pytest.mark.parametrize(
    ("name", "count"), [("gsm8k", 7473), ("svamp", 1000), ("aime24", 30), ("amc23", 40), ("humaneval", 164)]
)
def test_real_files(name, count, monkeypatch):
    file = shared(f"data/{PRESETS[name].file}")
    monkeypatch.setenv("GRPO_JAX_DATA", str(file.parent))
    sides = build(PresetData(name))
    problems = [*sides.train, *sides.held_out]
    assert len(problems) == count
    if PRESETS[name].reward == "math":
        assert unparseable_golds([p.answer for p in problems]) == []


def test_a_row_that_does_not_fit_says_where_and_what(tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": "Q?", "answer": "1"}))
    with pytest.raises(
        ValueError, match=r"rows\.jsonl:1: there is none of the fields problem, problem, question; the row"
    ):
        build(PresetData("math500", path=str(tmp_path / "rows.jsonl")))
    (tmp_path / "rows.jsonl").write_text(json.dumps({"problem": "Q?", "solution": "no box"}))
    with pytest.raises(ValueError, match=r"rows\.jsonl:1: the solution has no \\boxed"):
        build(PresetData("math", path=str(tmp_path / "rows.jsonl")))


class Malicious:
    def __reduce__(self):
        return print, ("ran",)


def test_packed_tests_that_would_run_code_are_refused(tmp_path, capsys):
    packed = base64.b64encode(zlib.compress(pickle.dumps(Malicious()))).decode()
    row = {**ROWS["livecodebench"][0], "private_test_cases": packed}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    with pytest.raises(ValueError, match=r"rows\.jsonl:1: a pickled .*print in private_test_cases"):
        build(PresetData("livecodebench", path=str(tmp_path / "rows.jsonl")))
    assert "ran" not in capsys.readouterr().out


METHOD_ROW = {
    "question_content": "Add.",
    "starter_code": "class Solution:\n    def add(self, a: int, b: List[int]) -> int:\n        ",
    "metadata": json.dumps({"func_name": "add"}),
    "public_test_cases": json.dumps([{"input": "1\n[2, 3]", "output": "6", "testtype": "functional"}]),
}


def livecodebench(tmp_path, *lines):
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return build(PresetData("livecodebench", path=str(tmp_path / "rows.jsonl"), held_out_fraction=0)).train


def test_problems_that_ask_for_a_method_show_the_class_and_call_it(tmp_path):
    script, method = livecodebench(tmp_path, ROWS["livecodebench"][0], METHOD_ROW)
    assert "standard input" in script.prompt and "standard input" not in method.prompt
    assert "```python\nclass Solution:\n    def add(self, a: int, b: List[int]) -> int:" in method.prompt
    tests = find_tests(method)
    assert tests.entry_point == "Solution.add" and len(tests.tests) == 1
    assert "Solution().add(*json.loads('[1, [2, 3]]'))" in tests.tests[0]


def test_test_cases_of_no_known_kind_are_an_error(tmp_path):
    both = json.dumps([*CASES, *json.loads(METHOD_ROW["public_test_cases"])])
    with pytest.raises(ValueError, match=r"rows\.jsonl:1: test cases of the kinds \['functional', 'stdin'\]"):
        livecodebench(tmp_path, {**METHOD_ROW, "public_test_cases": both})


def test_an_unknown_preset_lists_the_known():
    with pytest.raises(ValueError, match=r"data\.name 'gsm9k' is not a preset. Expected one of gsm8k, math"):
        build(PresetData("gsm9k"))


def test_models_are_compared_on_test_problems(tmp_path, monkeypatch):
    row, asked, answer = ROWS["gsm8k"]
    (tmp_path / "gsm8k_train.jsonl").write_text(json.dumps(row))
    with pytest.raises(ValueError, match=r"tasks: gsm8k expects gsm8k_test\.jsonl in .*gsm8k=hf://.*test-"):
        evaluation_problems("gsm8k", folder=tmp_path)
    (tmp_path / "gsm8k_test.jsonl").write_text(json.dumps({**row, "question": "Another Q?"}))
    (problem,) = evaluation_problems("gsm8k", folder=tmp_path)
    assert problem.prompt.startswith("Another Q?") and problem.answer == answer
    monkeypatch.setenv("GRPO_JAX_DATA", str(tmp_path))
    assert evaluation_problems("gsm8k") == [problem]
    (problem,) = evaluation_problems("gsm8k", path=str(tmp_path / "gsm8k_train.jsonl"))
    assert problem.prompt.startswith(asked)


@pytest.mark.parametrize(("name", "count"), [("gsm8k", 1319), ("aime24", 30), ("humaneval", 164)])
def test_real_test_files(name, count):
    folder = shared(f"data/{PRESETS[name].test_file or PRESETS[name].file}").parent
    assert len(evaluation_problems(name, folder=folder)) == count
