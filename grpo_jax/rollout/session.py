"""One call of the engine: the loop in which the host seats completions and the device decodes them."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.rollout import buckets, decode
from grpo_jax.rollout.buckets import Sizes
from grpo_jax.rollout.cache import Seating
from grpo_jax.rollout.schedule import Schedule
from grpo_jax.rollout.settings import Sampling
from grpo_jax.rollout.stops import stop_length

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """What is asked for, as arrays: B prompts, G completions each, N = B·G."""

    prompt_ids: np.ndarray  # [B, P], right-padded
    prompt_lengths: np.ndarray  # [B]
    limits: np.ndarray  # [N], tokens allowed
    keys: np.ndarray  # [N, 2], one completion key each
    starts: np.ndarray  # [N], tokens of each completion that the prompt already holds
    sampling: Sampling


@dataclass(frozen=True)
class Outputs:
    """What comes back, row n being sample n % G of prompt n // G. Zero beyond the lengths."""

    ids: np.ndarray  # [N, T]
    lengths: np.ndarray  # [N]
    stopped: np.ndarray  # [N]
    log_probs: np.ndarray  # [N, T]
    full_log_probs: np.ndarray  # [N, T]


@dataclass
class Work:
    """What a call took."""

    steps: int = 0
    """Decode steps."""
    slot_steps: int = 0
    """Decode steps times the slots there were; tokens over this is the occupancy."""
    tokens: int = 0
    """Tokens sampled."""


class Session:
    """Runs one request to its end.

    Each round seats waiting completions, gives up slots that no one will need and adds columns that someone
    does, decodes until the host is wanted again, and collects what is over. The order of events depends on
    the request alone, never on the clock.
    """

    def __init__(
        self,
        model: tuple[Any, Any],
        config: Any,
        request: Request,
        *,
        rules: decode.Rules,
        sizes: Sizes,
        to_text: Callable[[Sequence[int]], str] | None,
        programs: set[tuple[str, str]],
        on_group: Callable[[int, Outputs], None],
    ):
        """`on_group(prompt, outputs)` is called once that prompt's rows of the outputs are final."""
        self.work = Work()
        self._model, self._config, self._request, self._rules = model, config, request, rules
        self._sizes, self._to_text, self._programs = sizes, to_text, programs
        B, G, T = len(request.prompt_ids), request.sampling.group_size, request.sampling.max_tokens
        slots = sizes.slots_for(B * G)
        rows = sizes.rows_for(slots, G, B)
        self._on_group, self._missing = on_group, np.full(B, G)
        self._most_columns = max(T - 1, 1)  # the last token is never read
        self._columns = sizes.columns_for(1, self._most_columns)
        longest = sizes.max_prompt_length if sizes.fixed else int(request.prompt_lengths.max())
        self._prompt_tokens = sizes.prompt_tokens_for(longest)
        self._schedule = Schedule(prompts=B, group_size=G, slots=slots, rows=rows, lanes=min(G, slots))
        start = decode.start if sizes.shards is None else decode.start_on_mesh
        self._state = start(
            config=config,
            rows=rows,
            prompt_tokens=self._prompt_tokens,
            slots=slots,
            columns=self._columns,
            max_tokens=T,
            penalised=rules.repetition_penalty is not None,
            positions_first=sizes.positions_first,
        )
        self._outputs = Outputs(
            ids=np.zeros((B * G, T), np.int32),
            lengths=np.zeros(B * G, np.int32),
            stopped=np.zeros(B * G, bool),
            log_probs=np.zeros((B * G, T), np.float32),
            full_log_probs=np.zeros((B * G, T), np.float32),
        )

    def run(self) -> Outputs:
        while self._schedule.waiting or self._schedule.seated:
            self._fill()
            self._shrink()
            self._decode()
            self._collect()
        self.work.tokens = int(self._outputs.lengths.sum())
        return self._outputs

    def _fill(self) -> None:
        """Reads the prompts of the next completions in the queue and seats them."""
        new_prompts, seats = self._schedule.fill()
        if not seats:
            return
        self._prefill(new_prompts)
        request, G, slots = self._request, self._request.sampling.group_size, self._schedule.slots
        A = self._sizes.arrivals_for(len(seats), slots)
        prompts = np.array([seat.prompt for seat in seats])
        completions = prompts * G + np.array([seat.sample for seat in seats])
        arrivals = decode.Arrivals(
            slots=buckets.pad(np.array([seat.slot for seat in seats], np.int32), A, slots),
            rows=buckets.pad(np.array([seat.row for seat in seats], np.int32), A),
            keys=jax.random.wrap_key_data(buckets.pad(request.keys[completions], A), impl="threefry2x32"),
            prompt_lengths=buckets.pad(request.prompt_lengths[prompts], A),
            limits=buckets.pad(request.limits[completions], A),
            starts=buckets.pad(request.starts[completions], A),
            prompt_ids=buckets.pad(request.prompt_ids[prompts, : self._prompt_tokens], A),
        )
        self._note("admit", completions=A)
        self._state = decode.admit(self._state, arrivals, self._rules)

    def _prefill(self, new_prompts: dict[int, int]) -> None:
        """Reads prompts into rows, those of one width together."""
        lengths, batches = self._request.prompt_lengths, {}
        for row, prompt in new_prompts.items():
            width = self._sizes.prompt_tokens_for(int(lengths[prompt]))
            batches.setdefault(width, []).append((row, prompt))
        for width, pairs in sorted(batches.items()):
            while pairs:
                n = self._sizes.prefill_for(len(pairs), width)
                (rows, prompts), pairs = np.array(pairs[:n], np.int32).T, pairs[n:]
                self._note("prefill", prompts=n, width=width)
                self._state = decode.prefill(
                    *self._model,
                    self._state,
                    buckets.pad(rows, n, self._schedule.rows),
                    buckets.pad(self._request.prompt_ids[prompts, :width], n),
                    buckets.pad(lengths[prompts], n, 1),
                )

    def _shrink(self) -> None:
        """With an empty queue, fewer slots as soon as fewer will do."""
        if self._schedule.waiting:
            return
        slots = self._sizes.fewer_slots(self._schedule.slots, len(self._schedule.seated))
        if slots < self._schedule.slots:
            rows, kept = self._schedule.shrink(slots)
            self._note("shrink", to_rows=len(rows), to_slots=slots)
            self._state = decode.shrink(self._state, jnp.asarray(rows), jnp.asarray(kept))

    def _decode(self) -> None:
        """Decodes until the columns run out, the host is due a look, or enough slots are free."""
        position = np.asarray(self._state.slots.position)
        seats = self._schedule.seated
        furthest = max(int(position[seat.slot]) for seat in seats)
        if furthest > self._columns:
            self._columns = self._sizes.columns_for(furthest, self._most_columns)
            self._note("widen", to_columns=self._columns)
            self._state = decode.widen(self._state, columns=self._columns)
        self._note("decode")
        seating = Seating(*self._schedule.seating())
        most_steps = min(self._sizes.chunk, self._columns - furthest + 1)
        self._state, steps = decode.decode(
            *self._model, self._state, seating, self._rules, most_steps, self._leave_at()
        )
        self.work.steps += int(steps)
        self.work.slot_steps += int(steps) * self._schedule.slots

    def _leave_at(self) -> int:
        """The number of active slots at which the host can do something about the free ones."""
        slots, seated = self._schedule.slots, len(self._schedule.seated)
        if self._schedule.waiting:
            return min(slots - max(slots // 8, 1), seated - 1)  # one by one would prefill one by one
        fewer = slots // buckets.SHRINK
        return fewer if self._sizes.fewer_slots(slots, fewer) == fewer else 0

    def _collect(self) -> None:
        """Takes completions that are over out of their slots."""
        slots = jax.tree.map(np.asarray, replace(self._state.slots, keys=None, seen=None))
        cut = self._cut(slots) if self._request.sampling.stop_strings else {}
        for seat in self._schedule.seated:
            if slots.active[seat.slot] and seat.slot not in cut:
                continue
            n = seat.prompt * self._request.sampling.group_size + seat.sample
            length = cut.get(seat.slot, int(slots.position[seat.slot]))
            for name in ("ids", "log_probs", "full_log_probs"):
                getattr(self._outputs, name)[n, :length] = getattr(slots, name)[seat.slot, :length]
            self._outputs.lengths[n] = length
            self._outputs.stopped[n] = slots.stopped[seat.slot] or seat.slot in cut
            self._schedule.release(seat.slot)
            self._missing[seat.prompt] -= 1
            if not self._missing[seat.prompt]:
                self._on_group(seat.prompt, self._outputs)
        if cut:
            over = jnp.zeros(self._schedule.slots, bool).at[jnp.array(list(cut))].set(True)
            slots = self._state.slots
            self._state = replace(self._state, slots=replace(slots, active=slots.active & ~over))

    def _cut(self, slots: decode.Slots) -> dict[int, int]:
        """{slot: length} of completions whose text holds a stop string, with the token that completes it."""
        cut = {}
        for seat in self._schedule.seated:
            ids = slots.ids[seat.slot, : slots.position[seat.slot]].tolist()
            length = stop_length(ids, self._request.sampling.stop_strings, self._to_text)
            if length is not None:
                cut[seat.slot] = length
        return cut

    def _note(self, program: str, **extra: int) -> None:
        """Logs a program the first time it is needed: this is what compiles."""
        cache = self._state.cache
        sizes = {
            "slots": cache.value.shape[1],
            "columns": cache.columns,
            "rows": cache.prompt_value.shape[1],
            "lanes": self._schedule.lanes,
            "prompt_tokens": cache.prompt_value.shape[3],
            "max_tokens": self._request.sampling.max_tokens,
        }
        text = ", ".join(f"{name} {size}" for name, size in (sizes | extra).items())
        if (program, text) not in self._programs:
            self._programs.add((program, text))
            logger.info("new program, number %d: %s with %s", len(self._programs), program, text)
