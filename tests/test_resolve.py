"""Names become functions, and a wrong name says what would have been right."""

import math

import pytest

from grpo_jax.resolve import resolve


def test_finds_a_builtin_and_an_import_path():
    assert resolve("f", {"f": abs}, "reward") is abs
    assert resolve("math:sqrt", {}, "reward") is math.sqrt
    assert resolve("os:path.join", {}, "reward")("a", "b") == "a/b"


def test_finds_a_module_in_the_folder_the_run_is_started_in(tmp_path, monkeypatch):
    (tmp_path / "my_rewards_for_test.py").write_text("def score(problem, completion):\n    return 1.0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/nowhere"])
    assert resolve("my_rewards_for_test:score", {}, "reward")(None, "") == 1.0


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("exact_mach", "Did you mean 'exact_match'"),
        ("unlike_any", "Expected one of exact_match, format"),
        ("no_such_module:f", "No module named 'no_such_module'"),
        ("math:no_such", "math has no 'no_such'; it has"),
        ("math:pi", "is a float, expected something callable"),
        (":f", 'not of the form "module:attribute"'),
    ],
)
def test_a_wrong_name_is_one_clear_error(name, says):
    with pytest.raises(ValueError, match=r"reward\.functions: ") as caught:
        resolve(name, {"exact_match": abs, "format": abs}, "reward.functions")
    assert says in str(caught.value)
