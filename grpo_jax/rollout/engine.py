"""The sampling engine: parameters in, prompts in, rollouts out."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Key

from grpo_jax.rollout.decode import complete
from grpo_jax.rollout.keys import completion_keys, threefry
from grpo_jax.rollout.settings import Sampling
from grpo_jax.types import STOPPED, TRUNCATED, Rollout

SHORTEST_BUCKET = 16
STOP_ID_MULTIPLE = 8


class NativeEngine:
    """Samples from a decoder of this package, on the devices JAX finds.

    Prompts are padded to a power of two of tokens (`SHORTEST_BUCKET` to `max_prompt_length`) and their number
    to a multiple of eight (a power of two below that), so that a run compiles a handful of programs at most.
    """

    def __init__(self, graphdef: nnx.GraphDef, *, max_prompt_length: int):
        self._graphdef = graphdef
        self._max_prompt_length = max_prompt_length
        self._params = None

    def load(self, params: nnx.State) -> None:
        """Takes the parameters the next rollouts are sampled with."""
        self._params = params

    def generate(
        self,
        prompt_ids: Sequence[Sequence[int]],
        *,
        sampling: Sampling,
        key: Key[Array, ""],
        prompt_indices: Sequence[int] | None = None,
    ) -> Rollout:
        """`sampling.group_size` completions of every prompt, as numpy arrays, prompt-major.

        `key` is the call's own: folded from the run's key and the step. `prompt_indices` name the prompts in
        the random numbers (their place in the call if not given), so prompts can be moved, dropped or spread
        over calls and keep their completions. `group_ids` are places in the call.
        """
        if self._params is None:
            raise ValueError("engine has no parameters yet; expected load(params) before generate(...)")
        P, T, G = self._max_prompt_length, sampling.max_tokens, sampling.group_size
        indices = np.arange(len(prompt_ids)) if prompt_indices is None else np.asarray(prompt_indices)
        if len(indices) != len(prompt_ids):
            raise ValueError(f"prompt_indices has {len(indices)} entries; expected {len(prompt_ids)}")
        padded, lengths = self._pad(prompt_ids)
        B = len(prompt_ids)
        rows = _batch_bucket(B)
        bucket = min(_power_of_two(int(lengths.max())), P)
        out, _ = complete(
            self._graphdef,
            self._params,
            jnp.asarray(_pad_rows(padded[:, :bucket], rows)),
            jnp.asarray(_pad_rows(lengths, rows)),
            completion_keys(threefry(key), jnp.asarray(_pad_rows(indices, rows)), jnp.arange(G)),
            jnp.asarray(_stop_ids(sampling)),
            _knobs(sampling),
            max_tokens=T,
            top_k=sampling.top_k,
        )
        out = jax.tree.map(lambda x: np.asarray(x)[:B].reshape(B * G, *x.shape[2:]), out)
        return Rollout(
            prompt_ids=np.repeat(padded, G, axis=0),
            prompt_lengths=np.repeat(lengths, G),
            completion_ids=out.ids,
            completion_lengths=out.lengths,
            stop_reason=np.where(out.stopped, STOPPED, TRUNCATED).astype(np.int32),
            group_ids=np.repeat(np.arange(B, dtype=np.int32), G),
            sampler_log_probs=out.log_probs,
            sampler_full_log_probs=out.full_log_probs,
        )

    def close(self) -> None:
        """Lets go of the parameters."""
        self._params = None

    def _pad(self, prompt_ids: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
        """Prompts right-padded to the longest allowed, and their lengths."""
        if not prompt_ids:
            raise ValueError("prompt_ids is empty; expected at least one prompt")
        lengths = np.array([len(ids) for ids in prompt_ids], np.int32)
        if lengths.min() < 1:
            raise ValueError(f"prompt_ids[{lengths.argmin()}] is empty; expected at least one token")
        if lengths.max() > self._max_prompt_length:
            raise ValueError(
                f"prompt_ids[{lengths.argmax()}] has {lengths.max()} tokens;"
                f" expected at most max_prompt_length, {self._max_prompt_length}"
            )
        padded = np.zeros((len(prompt_ids), self._max_prompt_length), np.int32)
        for row, ids in zip(padded, prompt_ids, strict=True):
            row[: len(ids)] = ids
        return padded, lengths


def _knobs(sampling: Sampling) -> dict[str, Array]:
    """The settings in use, as values; which ones there are is all that a compiled program knows of them."""
    values = {"temperature": sampling.temperature}
    if sampling.top_p < 1:
        values["top_p"] = sampling.top_p
    if sampling.min_p > 0:
        values["min_p"] = sampling.min_p
    return {} if sampling.temperature == 0 else {name: jnp.float32(value) for name, value in values.items()}


def _stop_ids(sampling: Sampling) -> np.ndarray:
    """Padded with −1, which no token is, so that lists of a few lengths share one program."""
    count = len(sampling.stop_ids)
    padded = np.full(max(count + -count % STOP_ID_MULTIPLE, STOP_ID_MULTIPLE), -1, np.int32)
    padded[:count] = sampling.stop_ids
    return padded


def _power_of_two(length: int) -> int:
    return max(SHORTEST_BUCKET, 1 << (length - 1).bit_length())


def _batch_bucket(count: int) -> int:
    return 1 << (count - 1).bit_length() if count < 8 else count + -count % 8


def _pad_rows(array: np.ndarray, rows: int) -> np.ndarray:
    return np.pad(array, [(0, rows - len(array))] + [(0, 0)] * (array.ndim - 1))
