"""The ledger survives a kill at any byte, and refuses other settings by name."""

import pytest

from grpo_jax.evaluation.ledger import Ledger, read_settings
from grpo_jax.training.records import read_rows
from tests.evaluation.rows import rows, settings

CORRECT = [[1, 0], [0, 1]]
ROWS, SETTINGS = rows(CORRECT), settings(CORRECT)


def opened(folder, **changes):
    return Ledger(folder, SETTINGS | changes, made_by={"model": "m"})


def test_rows_are_on_disk_when_write_returns(tmp_path):
    ledger = opened(tmp_path / "sums")
    ledger.write(ROWS[:3])
    assert read_rows(tmp_path / "sums/completions.jsonl") == ROWS[:3] == ledger.rows
    assert ledger.has([0], 2) and not ledger.has([0, 1], 2)
    assert len(ledger) == 3 and ledger.mean("correct") == 1 / 3
    ledger.close()


def test_a_folder_has_one_writer_at_a_time(tmp_path):
    with opened(tmp_path / "sums"), pytest.raises(ValueError, match="another evaluation is writing"):
        opened(tmp_path / "sums")
    opened(tmp_path / "sums").close()


def test_a_kill_at_any_byte_loses_at_most_the_row_it_hit(tmp_path):
    with opened(tmp_path / "sums") as ledger:
        ledger.write(ROWS)
    file = tmp_path / "sums/completions.jsonl"
    whole = file.read_bytes()
    for cut in range(0, len(whole), 97):
        file.write_bytes(whole[:cut])
        with opened(tmp_path / "sums") as ledger:
            assert ledger.rows == ROWS[: len(ledger.rows)] and len(ledger.rows) >= whole[:cut].count(b"\n")
            ledger.write(ROWS)
        assert file.read_bytes() == whole


def test_a_row_is_written_once(tmp_path):
    with opened(tmp_path / "sums") as ledger:
        ledger.write(ROWS[:2])
        ledger.write([ROWS[0] | {"completion": "another"}, *ROWS[1:]])
    with opened(tmp_path / "sums") as ledger:
        assert ledger.rows == ROWS


@pytest.mark.parametrize(
    ("name", "value"), [("temperature", 0.6), ("seed", 1), ("max_tokens", 30), ("chat", True)]
)
def test_other_settings_are_refused_by_name(tmp_path, name, value):
    opened(tmp_path / "sums").close()
    with pytest.raises(ValueError, match=f"results with {name} .* and it is {value!r} now"):
        opened(tmp_path / "sums", **{name: value})
    assert read_settings(tmp_path / "sums") == SETTINGS


def test_text_that_is_no_unicode_comes_back(tmp_path):
    row = ROWS[0] | {"completion": "\ud800 \x00 \u2028 \u202e"}
    with opened(tmp_path / "sums") as ledger:
        ledger.write([row])
    with opened(tmp_path / "sums") as ledger:
        assert ledger.rows == [row]
