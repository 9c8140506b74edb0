"""The sampling engine: parameters in, prompts in, rollouts out."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Key

from grpo_jax.models.axes import DATA, FSDP
from grpo_jax.rollout import buckets, decode
from grpo_jax.rollout.keys import completion_keys, threefry
from grpo_jax.rollout.session import Outputs, Request, Session, Work
from grpo_jax.rollout.settings import Sampling
from grpo_jax.rollout.weights import Quantize, prepared, require_qwix
from grpo_jax.types import STOPPED, TRUNCATED, Rollout

STOP_ID_MULTIPLE = 8
SLOTS, CHUNK = 256, 64

OnGroup = Callable[[int, Rollout], None]
"""(place of the prompt in the call, the rows of its group)."""


class Engine(Protocol):
    """What a sampler has to offer the training loop."""

    def load(self, params: Any) -> None:
        """Takes the parameters the next rollouts are sampled with."""

    def generate(
        self, prompt_ids: Sequence[Sequence[int]], *, sampling: Sampling, key: Key[Array, ""], **options: Any
    ) -> Rollout:
        """`sampling.group_size` completions of every prompt, prompt-major.

        An option every engine takes is `on_group(place, rollout)`: it is called with the rows of each group as
        soon as its completions are all there.
        """

    def close(self) -> None:
        """Lets go of everything."""


class NativeEngine:
    """Samples from a decoder of this package, on the devices JAX finds.

    Completions are decoded in `slots` slots; a finished one makes room for the next in the queue. With
    nothing left in the queue the slots are halved as they empty, and the cache grows as completions do. The
    programs compiled for this come in few sizes (`buckets.py`), and each new one is logged.

    With `fixed_shapes` there is one size of everything: a completion is then bitwise the same whatever its
    slot, its neighbours and the rest of the call. Otherwise its tokens are the same unless a draw lies within
    rounding of a boundary: 1e-4 of probability in float32, about 1e-2 in bfloat16, where a long
    completion meets such a draw sooner or later.
    """

    def __init__(
        self,
        graphdef: nnx.GraphDef,
        *,
        max_prompt_length: int,
        slots: int = SLOTS,
        chunk: int = CHUNK,
        fixed_shapes: bool = False,
        positions_first: bool | None = None,
        mesh: Mesh | None = None,
        quantize: Quantize = "none",
        to_text: Callable[[Sequence[int]], str] | None = None,
    ):
        """`chunk` is the most decode steps between two looks of the host; stop strings need `to_text`.

        `positions_first` is the order of the cache, by default what suits the backend. `mesh` has the axes of
        `models.axes`: slots and prompts are dealt over data and fsdp, heads, MLP and vocabulary over tensor.
        `quantize` "int8" samples with the blocks' matrices in 8 bits.
        """
        for name, value in (("max_prompt_length", max_prompt_length), ("slots", slots), ("chunk", chunk)):
            if value < 1:
                raise ValueError(f"{name} is {value}; expected at least 1")
        self.work = Work()
        """What the last `generate` took."""
        self.programs: set[tuple[str, str]] = set()
        """Every program and its sizes that was needed so far."""
        self._graphdef, self._params, self._config = graphdef, None, None
        self._mesh, self._quantize = mesh, quantize
        if quantize != "none":
            require_qwix()
        shards = None if mesh is None else mesh.shape[DATA] * mesh.shape[FSDP]
        if slots % (shards or 1):
            raise ValueError(f"slots is {slots}; expected a multiple of the mesh's {shards} row shards")
        self._sizes = buckets.Sizes(max_prompt_length, slots, chunk, fixed_shapes, positions_first, shards)
        self._to_text = to_text

    def load(self, params: nnx.State | None) -> None:
        """Takes the parameters the next rollouts are sampled with, to where it samples; None lets go of them."""
        self._params = None
        if params is not None:
            self._config = nnx.merge(self._graphdef, params).config
            self._params = prepared(params, self._config, self._mesh, quantize=self._quantize)

    def close(self) -> None:
        """Lets go of the parameters."""
        self.load(None)

    def generate(
        self,
        prompt_ids: Sequence[Sequence[int]],
        *,
        sampling: Sampling,
        key: Key[Array, ""],
        prompt_indices: Sequence[int] | None = None,
        sample_indices: Sequence[int] | None = None,
        start_positions: Sequence[int] | None = None,
        max_tokens: Sequence[int] | np.ndarray | None = None,
        on_group: OnGroup | None = None,
    ) -> Rollout:
        """`sampling.group_size` completions of every prompt, as numpy arrays, prompt-major.

        `key` is the call's own: folded from the run's key and the step. `prompt_indices` name the prompts in
        the random numbers (their place in the call if not given), so prompts can be moved, dropped or spread
        over calls and keep their completions. `max_tokens` lowers the limit of single prompts or completions.
        `group_ids` are places in the call.

        To go on with completions whose first tokens the prompts end with, ask for one of each prompt and say
        which it is: sample `sample_indices[b]` of prompt `prompt_indices[b]`, `start_positions[b]` tokens in.
        """
        if self._params is None:
            raise ValueError("engine has no parameters yet; expected load(params) before generate(...)")
        if sampling.stop_strings and self._to_text is None:
            raise ValueError("sampling.stop_strings need text; expected an engine made with to_text")
        padded, lengths = _pad(prompt_ids, self._sizes.max_prompt_length, self._config.vocab_size)
        B, G = len(prompt_ids), sampling.group_size
        request = Request(
            prompt_ids=padded,
            prompt_lengths=lengths,
            limits=_limits(max_tokens, B, sampling),
            keys=_keys(key, _indices(prompt_indices, B), _samples(sample_indices, B, G)),
            starts=np.repeat(_per_prompt("start_positions", start_positions, B), G),
            sampling=sampling,
        )

        def finished(place: int, outputs: Outputs) -> None:
            if on_group is not None:
                on_group(place, _rollout(request, outputs, range(place, place + 1)))

        with nullcontext() if self._mesh is None else jax.set_mesh(self._mesh):
            session = Session(
                (self._graphdef, self._params),
                self._config,
                request,
                rules=_rules(sampling, self._config.vocab_size),
                sizes=self._sizes,
                to_text=self._to_text,
                programs=self.programs,
                on_group=finished,
            )
            outputs = session.run()
        self.work = session.work
        return _rollout(request, outputs, range(B))


def _rollout(request: Request, outputs: Outputs, places: range) -> Rollout:
    """The rows of the prompts in these neighbouring places."""
    G = request.sampling.group_size
    prompts, rows = slice(places.start, places.stop), slice(places.start * G, places.stop * G)
    return Rollout(
        prompt_ids=np.repeat(request.prompt_ids[prompts], G, axis=0),
        prompt_lengths=np.repeat(request.prompt_lengths[prompts], G),
        completion_ids=outputs.ids[rows],
        completion_lengths=outputs.lengths[rows],
        stop_reason=np.where(outputs.stopped[rows], STOPPED, TRUNCATED).astype(np.int32),
        group_ids=np.repeat(np.array(places, np.int32), G),
        sampler_log_probs=outputs.log_probs[rows],
        sampler_full_log_probs=outputs.full_log_probs[rows],
    )


def _pad(
    prompt_ids: Sequence[Sequence[int]], max_prompt_length: int, vocab_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Prompts right-padded to the longest allowed, and their lengths."""
    if not len(prompt_ids):
        raise ValueError("prompt_ids is empty; expected at least one prompt")
    lengths = np.array([len(ids) for ids in prompt_ids], np.int32)
    if lengths.min() < 1:
        raise ValueError(f"prompt_ids[{lengths.argmin()}] is empty; expected at least one token")
    if lengths.max() > max_prompt_length:
        raise ValueError(
            f"prompt_ids[{lengths.argmax()}] has {lengths.max()} tokens;"
            f" expected at most max_prompt_length, {max_prompt_length}"
        )
    padded = np.zeros((len(prompt_ids), max_prompt_length), np.int32)
    for row, ids in zip(padded, prompt_ids, strict=True):
        row[: len(ids)] = ids
    unknown = (padded < 0) | (padded >= vocab_size)
    if unknown.any():  # it would be read as whatever a look-up beyond the embedding gives
        place, column = np.argwhere(unknown)[0]
        raise ValueError(
            f"prompt_ids[{place}] has token {padded[place, column]}; expected ids from 0 to below vocab_size, {vocab_size}"
        )
    return padded, lengths


def _limits(max_tokens: Sequence[int] | np.ndarray | None, prompts: int, sampling: Sampling) -> np.ndarray:
    """[N]: the most tokens of every completion."""
    G, most = sampling.group_size, sampling.max_tokens
    limits = np.full(prompts, most) if max_tokens is None else np.asarray(max_tokens)
    if limits.shape not in ((prompts,), (prompts, G)):
        raise ValueError(f"max_tokens has shape {limits.shape}; expected ({prompts},) or ({prompts}, {G})")
    if limits.min() < 1 or limits.max() > most:
        raise ValueError(f"max_tokens lie in {limits.min()}..{limits.max()}; expected 1..{most}")
    limits = limits if limits.ndim == 2 else np.repeat(limits, G)
    return limits.reshape(-1).astype(np.int32)


def _indices(prompt_indices: Sequence[int] | None, prompts: int) -> np.ndarray:
    indices = np.arange(prompts) if prompt_indices is None else np.asarray(prompt_indices)
    if indices.shape != (prompts,):
        raise ValueError(f"prompt_indices has {len(indices)} entries; expected {prompts}, one per prompt")
    return indices


def _samples(sample_indices: Sequence[int] | None, prompts: int, group_size: int) -> np.ndarray:
    """[B, G]: which sample of its prompt each completion is."""
    if sample_indices is None:
        return np.tile(np.arange(group_size), (prompts, 1))
    if group_size != 1:
        raise ValueError(f"sample_indices with sampling.group_size {group_size}; expected a group_size of 1")
    return _per_prompt("sample_indices", sample_indices, prompts)[:, None]


def _per_prompt(name: str, values: Sequence[int] | None, prompts: int) -> np.ndarray:
    """[B]: a whole number for every prompt, 0 if none are given."""
    array = np.zeros(prompts, np.int32) if values is None else np.asarray(values, np.int32)
    if array.shape != (prompts,) or array.min() < 0:
        raise ValueError(f"{name} is {values}; expected {prompts} numbers ≥ 0, one per prompt")
    return array


def _keys(key: Array, indices: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """[N, 2]: the data of every completion's key, on the host, where completions are seated from."""
    folded = buckets.power_of_two(len(indices))
    keys = completion_keys(
        threefry(key), jnp.asarray(buckets.pad(indices, folded)), jnp.asarray(buckets.pad(samples, folded))
    )
    return np.asarray(jax.random.key_data(keys))[: len(indices)].reshape(-1, 2)


def _rules(sampling: Sampling, vocab_size: int) -> decode.Rules:
    """The settings as values. A rule that is off is absent, and costs a compiled program nothing."""
    knobs = {"temperature": sampling.temperature}
    knobs |= {"top_p": sampling.top_p} if sampling.top_p < 1 else {}
    knobs |= {"min_p": sampling.min_p} if sampling.min_p > 0 else {}
    if sampling.temperature == 0:
        knobs = {}
    count = len(sampling.stop_ids)
    stop_ids = np.array(sampling.stop_ids, np.int32)
    padded = max(count + -count % STOP_ID_MULTIPLE, STOP_ID_MULTIPLE)  # a few lengths share one program
    penalty = sampling.repetition_penalty
    return decode.Rules(
        knobs={name: jnp.float32(value) for name, value in knobs.items()},
        stop_ids=jnp.asarray(buckets.pad(stop_ids, padded, -1)),
        bias=_bias(sampling, vocab_size),
        repetition_penalty=None if penalty == 1 else jnp.float32(penalty),
        top_k=sampling.top_k,
    )


def _bias(sampling: Sampling, vocab_size: int) -> Array | None:
    """What is added to the logits, [V]; a forbidden token gets −∞."""
    if not sampling.logit_bias and not sampling.forbidden_ids:
        return None
    bias = np.zeros(vocab_size, np.float32)
    for name, ids in (("logit_bias", sampling.logit_bias), ("forbidden_ids", sampling.forbidden_ids)):
        for token in ids:
            if not 0 <= token < vocab_size:
                raise ValueError(
                    f"sampling.{name} has token {token}; expected ids below vocab_size, {vocab_size}"
                )
            bias[token] = -np.inf if name == "forbidden_ids" else sampling.logit_bias[token]
    if np.isneginf(bias).all():
        raise ValueError("sampling.forbidden_ids hold the whole vocabulary; expected one token left to draw")
    return jnp.asarray(bias)
