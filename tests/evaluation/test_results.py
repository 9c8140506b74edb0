"""From rows to numbers: by hand, against the statistics, and what is refused."""

import itertools
import json

import numpy as np
import pytest

from grpo_jax.evaluation.ledger import Ledger
from grpo_jax.evaluation.results import check_paired, read_suite, summarise
from grpo_jax.statistics import mean_interval, pass_at_k, wilson_interval
from tests.evaluation.rows import rows, settings

CORRECT = [[1, 0, 0, 0], [1, 1, 0, 1], [0, 0, 0, 0]]
VOTES = [["7", "8", "9", None], ["1", "1.0", "2", "1"], ["5", "5", "6", None]]


def result(correct=CORRECT, votes=VOTES, **changes):
    return summarise("sums", rows(correct, votes), settings(correct, **changes))


def test_numbers_a_person_can_check():
    found = result()
    assert found.accuracy.value == pytest.approx((1 / 4 + 3 / 4 + 0) / 3)
    assert {k: e.value for k, e in found.pass_at.items()} == pytest.approx(
        {1: 1 / 3, 2: (1 / 2 + 1) / 3, 4: 2 / 3}
    )
    # Of four: 7, 8 and 9 tie and one of them is right; 1 and 1.0 are both right and so one answer; 5 is wrong.
    assert found.maj_at[4].value == pytest.approx((1 / 3 + 1 + 0) / 3)
    assert found.tied_fraction[4] == pytest.approx(1 / 3)
    assert found.maj_at[1].value == found.accuracy.value
    assert (found.length_mean, found.truncated_fraction, found.unjudged) == (11.5, 0.25, 0)


def test_right_answers_are_one_answer_however_they_are_written():
    # By spelling, 3 would win with two votes; the judge calls 1/2 and 0.5 both right, which makes three.
    found = result([[1, 1, 1, 0, 0]], [["1/2", "0.5", "50%", "3", "3"]])
    assert found.maj_at[5].value == 1 and found.tied_fraction[5] == 0


def test_four_samples_one_right_four_tries_is_certain():
    assert result([[0, 0, 1, 0]], [["1", "2", "3", "4"]]).pass_at[4].value == 1.0


def test_maj_and_pass_are_brute_force_over_blocks_and_subsets():
    rng = np.random.default_rng(0)
    correct = rng.random((20, 6)) < 0.4
    votes = [[str(rng.integers(3)) for _ in line] for line in correct]
    found = result(correct.tolist(), votes)
    for k in (1, 2, 4, 6):
        subsets = [np.mean([any(s) for s in itertools.combinations(line, k)]) for line in correct]
        assert found.pass_at[k].value == pytest.approx(np.mean(subsets))
        values = []
        for line, vote in zip(correct, votes, strict=True):
            blocks = []
            for start in range(0, 6 - k + 1, k):
                ballots = ["right" if c else v for c, v in zip(line, vote, strict=True)][start : start + k]
                most = max(map(ballots.count, ballots))
                winners = {b for b in ballots if ballots.count(b) == most}
                blocks.append(("right" in winners) / len(winners))
            values.append(np.mean(blocks))
        assert found.maj_at[k].value == pytest.approx(np.mean(values))


def test_intervals_rest_on_as_many_draws_as_there_are_blocks():
    found = result()
    assert found.accuracy[1:] == mean_interval(np.array([0.25, 0.75, 0]), draws=4)
    assert found.pass_at[4][1:] == pytest.approx(wilson_interval(2 / 3, 3))
    equally_hard = [[1, 0, 0, 0]] * 20
    pairs = result(equally_hard, [["1", "2", "3", "4"]] * 20).pass_at[2]
    assert pairs == pytest.approx((0.5, *wilson_interval(0.5, 20 * 2)))


@pytest.mark.parametrize("k", [1, 2, 8])
def test_the_interval_of_pass_at_k_covers_nineteen_times_in_twenty(k):
    rng = np.random.default_rng(k)
    rates = rng.beta(0.5, 1.5, (2500, 60, 1))
    truth = 1 - np.mean((1 - np.random.default_rng(9).beta(0.5, 1.5, 1_000_000)) ** k)
    hits = []
    for sampled in rng.random((2500, 60, 8)) < rates:
        low, high = mean_interval(pass_at_k(sampled, k), draws=8 // k)
        hits.append(low <= truth <= high)
    assert 0.93 <= np.mean(hits) <= 0.97


def test_a_judge_without_answers_has_no_majority():
    found = summarise("sums", rows(CORRECT), settings(CORRECT, votes=False))
    assert found.maj_at == {} and found.tied_fraction == {}


def test_what_could_not_be_judged_is_counted_and_wrong():
    table = rows(CORRECT, VOTES)
    table[3] = table[3] | {"score": None}
    assert summarise("sums", table, settings(CORRECT)).unjudged == 1


def test_all_numbers_are_json():
    text = json.dumps(result().numbers(), allow_nan=False)
    assert json.loads(text)["pass_at"]["4"]["value"] == pytest.approx(2 / 3)


def test_a_folder_gives_the_same_result_as_its_rows(tmp_path):
    with Ledger(tmp_path / "sums", settings(CORRECT), made_by={}) as ledger:
        ledger.write(reversed(rows(CORRECT, VOTES)))
    assert read_suite(tmp_path, "sums").numbers() == result().numbers()


def test_an_unfinished_evaluation_has_no_result(tmp_path):
    with Ledger(tmp_path / "sums", settings(CORRECT), made_by={}) as ledger:
        ledger.write(rows(CORRECT, VOTES)[:-1])
    with pytest.raises(ValueError, match="sums: 11 of 12 completions are judged"):
        read_suite(tmp_path, "sums")
    with pytest.raises(ValueError, match=r"holds no results of gsm8k; it holds sums"):
        read_suite(tmp_path, "gsm8k")


def test_a_paired_comparison_needs_the_same_problems(tmp_path):
    ours = [("1+1=", "2"), ("2+2=", "4")]
    check_paired(ours, list(ours), name="sums", folder=tmp_path)
    for other, message in (
        ([*ours, ("3+3=", "6")], "sums has 3 problems in .* and 2 here"),
        ([ours[0], ("2+3=", "5")], r"problem 1 of sums is '2\+3=' in .* and '2\+2=' here"),
        ([ours[0], ("2+2=", "5")], "problem 1 of sums"),
    ):
        with pytest.raises(ValueError, match=message):
            check_paired(ours, other, name="sums", folder=tmp_path)
