"""Record what an engine samples, and play it back for debugging or offline updates.

A call is known by its name, or else by its key, and by where it goes on if it does, so a run that resumes in the
middle finds its own rollouts.
"""

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Key

from grpo_jax.rollout import recordings
from grpo_jax.rollout.engine import Engine, OnGroup
from grpo_jax.rollout.keys import threefry
from grpo_jax.rollout.settings import Sampling
from grpo_jax.types import STOPPED, TRUNCATED, Rollout, rows

_STOP_REASONS = {"stopped": STOPPED, "truncated": TRUNCATED}


class RecordingEngine:
    """Another engine, every rollout of which is recorded: in a .jsonl file, or in a folder NAME.parquet."""

    def __init__(self, engine: Engine, path: str | Path):
        self._engine, self._path = engine, Path(path)
        recordings.kind(self._path)

    def load(self, params: Any) -> None:
        self._engine.load(params)

    def generate(
        self, prompt_ids: Sequence[Sequence[int]], *, sampling: Sampling, key: Key[Array, ""], **options: Any
    ) -> Rollout:
        rollout = self._engine.generate(prompt_ids, sampling=sampling, key=key, **options)
        recordings.append(self._path, lines(rollout, call=_name(key, options)))
        return rollout

    def close(self) -> None:
        self._engine.close()


class ReplayEngine:
    """Gives back recorded rollouts instead of sampling."""

    def __init__(self, path: str | Path, *, max_prompt_length: int):
        self.path, self._max_prompt_length = Path(path), max_prompt_length
        self._recording = recordings.Recording(self.path)

    @property
    def calls(self) -> Mapping[str, int]:
        """The calls there are, and the number of completions of each."""
        return self._recording.sizes

    def load(self, params: Any) -> None:
        """Nothing to do: what is played back was sampled with the parameters of its day."""

    def generate(
        self,
        prompt_ids: Sequence[Sequence[int]],
        *,
        sampling: Sampling,
        key: Key[Array, ""] | None = None,
        call: str | None = None,
        part: slice = slice(None),
        on_group: OnGroup | None = None,
        **options: Any,
    ) -> Rollout:
        """The recorded rollout of this call, or of the one with this key.

        The prompts must be those it was recorded for, `sampling.group_size` completions of each, or those of the `part`
        of its rows that is asked for.
        """
        name = _name(key, options) if call is None else call
        if name not in self.calls:
            kind = "key" if call is None else "name"
            raise ValueError(f"{self.path} has no call with {kind} {name}; it has {len(self.calls)} calls")
        recorded = self._recording.rows(name)[part]
        asked = [list(ids) for ids in prompt_ids for _ in range(sampling.group_size)]
        same = [ids == line["prompt_ids"] for ids, line in zip(asked, recorded, strict=False)]
        if len(asked) != len(recorded) or not all(same):
            row = same.index(False) if False in same else len(same)
            raise ValueError(
                f"{self.path}, call {name}: recorded for {len(recorded)} completions, asked for"
                f" {len(asked)}; the prompts differ from row {row} on"
            )
        try:
            rollout = _rollout(recorded, self._max_prompt_length, sampling.max_tokens)
        except (ValueError, TypeError, OverflowError) as error:
            raise ValueError(f"{self.path}, call {name}: {error}") from error
        for place in range(len(prompt_ids) if on_group else 0):
            on_group(
                place, rows(rollout, slice(place * sampling.group_size, (place + 1) * sampling.group_size))
            )
        return rollout

    def close(self) -> None:
        """Nothing to do."""


def _name(key: Key[Array, ""], options: Mapping[str, Any]) -> str:
    """The key's words; the turns of a conversation share a key, and the starts of a later one tell it apart."""
    words = np.asarray(jax.random.key_data(threefry(key))).tolist()
    if options.get("start_positions") is not None:
        place = [np.asarray(options[name]).tolist() for name in ("prompt_indices", "start_positions")]
        words.append(blake2b(json.dumps(place).encode(), digest_size=6).hexdigest())
    return "-".join(map(str, words))


def lines(rollout: Rollout, *, call: str) -> list[recordings.Row]:
    """The rows of a rollout for a recording, under the name of its call."""
    return [{"call": call, **_line(rollout, row)} for row in range(len(rollout.completion_ids))]


def _line(rollout: Rollout, row: int) -> recordings.Row:
    length = int(rollout.completion_lengths[row])
    per_token = {name: getattr(rollout, name)[row, :length].tolist() for name in recordings.PER_TOKEN}
    if rollout.sampled is not None:
        per_token["sampled"] = rollout.sampled[row, :length].tolist()
    return {
        "row": row,
        "group": int(rollout.group_ids[row]),
        "stop_reason": next(k for k, v in _STOP_REASONS.items() if v == rollout.stop_reason[row]),
        "prompt_ids": rollout.prompt_ids[row, : rollout.prompt_lengths[row]].tolist(),
        **per_token,
    }


def _rollout(lines: Sequence[recordings.Row], max_prompt_length: int, max_tokens: int) -> Rollout:
    def padded(name: str, width: int, dtype: type) -> np.ndarray:
        array = np.zeros((len(lines), width), dtype)
        for row, (into, line) in enumerate(zip(array, lines, strict=True)):
            values, tokens = line.get(name) or [], len(line["completion_ids"])
            count = len(values)
            if count > width:
                raise ValueError(f"row {row} has {count} {name}; expected at most {width}")
            if name != "prompt_ids" and count != tokens:
                raise ValueError(f"row {row} has {count} {name}; expected {tokens}, one per completion token")
            into[:count] = values
            if dtype is np.float32 and not np.isfinite(into).all():
                raise ValueError(f"row {row} has {name} {values}; expected finite numbers")
            if dtype is not np.float32 and into[:count].tolist() != list(values):
                raise ValueError(f"row {row} has {name} {values}; expected {dtype.__name__} values")
        return array

    empty = [row for row, line in enumerate(lines) if not line["completion_ids"]]
    if empty:
        raise ValueError(
            f"row {empty[0]} has no completion_ids; expected at least one, the stop token included"
        )
    unknown = {line["stop_reason"] for line in lines} - _STOP_REASONS.keys()
    if unknown:
        raise ValueError(f"stop_reason is {unknown.pop()!r}; expected {' or '.join(_STOP_REASONS)}")

    return Rollout(
        prompt_ids=padded("prompt_ids", max_prompt_length, np.int32),
        prompt_lengths=np.array([len(line["prompt_ids"]) for line in lines], np.int32),
        completion_ids=padded("completion_ids", max_tokens, np.int32),
        completion_lengths=np.array([len(line["completion_ids"]) for line in lines], np.int32),
        stop_reason=np.array([_STOP_REASONS[line["stop_reason"]] for line in lines], np.int32),
        group_ids=np.array([line["group"] for line in lines], np.int32),
        sampler_log_probs=padded("sampler_log_probs", max_tokens, np.float32),
        sampler_full_log_probs=padded("sampler_full_log_probs", max_tokens, np.float32),
        sampled=padded("sampled", max_tokens, bool) if any("sampled" in line for line in lines) else None,
    )
