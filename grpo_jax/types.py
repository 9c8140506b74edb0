"""The data that crosses rooms, and the axis legend every shape in this project uses.

    B  prompts (groups) in a step          P  prompt tokens, padded
    G  completions per prompt              T  completion tokens, padded
    N  sequences, N = B * G                V  vocabulary
    K  reward functions                    D  model width

Four kinds of log-probability, one name each: `log_probs` (the policy being differentiated), `old_log_probs` (the
policy before this rollout's updates), `sampler_log_probs` (what the sampler drew from, after top-k and top-p),
`ref_log_probs` (the KL reference).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

STOPPED, TRUNCATED = 0, 1
"""Values of `stop_reason`: a stop token was sampled, or the length limit came first."""


class InputError(ValueError):
    """A mistake of the reader's that shows only once a run is under way: a failing reward, an unfit checkpoint."""


class TrainingStopped(RuntimeError):
    """A run that cannot usefully go on; the message says at which step, why, and what to do."""


class Message(NamedTuple):
    """One turn of a chat."""

    role: str
    content: str


@dataclass(frozen=True)
class Problem:
    """A question whose answer a program can check.

    `prompt` is raw text, or a tuple of chat messages for the tokenizer's chat template. `answer` is the reference the
    rewards compare with. `metadata` is whatever the source knows besides (its row, its difficulty, …).
    """

    prompt: str | tuple[Message, ...]
    answer: str
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def prompt_text(self) -> str:
        """The prompt as one string, for people and for hashing; never what is tokenised for a chat."""
        if isinstance(self.prompt, str):
            return self.prompt
        return "\n".join(f"{message.role}: {message.content}" for message in self.prompt)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Rollout:
    """What the sampler returns for N sequences. Rows of one group need not be neighbours: `group_ids` says.

    `completion_lengths` counts tokens that exist, the stop token included. Masks come from lengths and stop reasons,
    never from token ids. `sampler_log_probs` is of the distribution drawn from; `sampler_full_log_probs` of the
    untruncated one at the same temperature, which is what the trainer must reproduce. `sampled` says which tokens the
    policy wrote; the others are an environment's answers, with log-probabilities of 0. None: it wrote all of them.
    """

    prompt_ids: Int[Array, "N P"]
    prompt_lengths: Int[Array, "N"]
    completion_ids: Int[Array, "N T"]
    completion_lengths: Int[Array, "N"]
    stop_reason: Int[Array, "N"]
    group_ids: Int[Array, "N"]
    sampler_log_probs: Float[Array, "N T"]
    sampler_full_log_probs: Float[Array, "N T"]
    sampled: Bool[Array, "N T"] | None = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Batch:
    """Everything the policy update reads, one row per sequence.

    `loss_mask` marks the tokens that train; it may have holes and is never longer than the completion.
    `group_ids` −1 is a padding row, which counts nowhere. `advantages` are final (after any history weighting).
    `old_log_probs` is None when the rollout is used for a single optimizer step: the policy is then its own old policy.
    `ref_log_probs` is None when there is no KL term, so that no reference model ever runs for nothing.
    """

    prompt_ids: Int[Array, "N P"]
    prompt_lengths: Int[Array, "N"]
    completion_ids: Int[Array, "N T"]
    completion_lengths: Int[Array, "N"]
    loss_mask: Bool[Array, "N T"]
    group_ids: Int[Array, "N"]
    advantages: Float[Array, "N"]
    sampler_log_probs: Float[Array, "N T"]
    sampler_full_log_probs: Float[Array, "N T"]
    old_log_probs: Float[Array, "N T"] | None = None
    ref_log_probs: Float[Array, "N T"] | None = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """The run, whole: saving it saves the run, restoring it continues the run bit for bit.

    `step` counts optimizer steps of the warm start while `warm` is 1, then rollouts. `cursor` is the index of the next
    problem in the endless training order. `params` are what trains: with LoRA the adapters, and `frozen` is the rest of
    the policy, which checkpoints leave out because the config says where it comes from (None without LoRA).
    `ref_params` is None when there is no KL term, else the reference's values of what trains; after a warm start they
    exist nowhere else. `history` is the HA-DW anchor, None without it. `sampler_params` are the values of what trains
    before the last rollout's updates, which the next rollout is sampled with; None unless rollouts lag.
    """

    params: Any
    optimizer: Any
    key: Any
    step: Int[Array, ""]
    warm: Int[Array, ""]
    cursor: Int[Array, ""]
    skipped: Int[Array, ""]
    frozen: Any = None
    ref_params: Any = None
    history: Any = None
    sampler_params: Any = None

    @classmethod
    def first(cls, *, params: Any, optimizer: Any, key: Any, warm: bool = False, **others: Any) -> Self:
        """A state before its first step: every count is 0, and absent what `others` do not name."""
        counts = {
            name: jnp.int32(0) for name in ("step", "cursor", "skipped")
        }  # donated, so none may be another
        return cls(params=params, optimizer=optimizer, key=key, warm=jnp.int32(warm), **counts, **others)


def rows(tree: Any, index: Any) -> Any:
    """The rows `index` of every array of a `Rollout` or `Batch`."""
    return jax.tree.map(lambda x: x[index], tree)


def joined(trees: Sequence[Any]) -> Any:
    """The rows of several `Rollout`s or `Batch`es as those of one."""
    return jax.tree.map(lambda *x: np.concatenate(x), *trees)


def as_numpy(tree: Any) -> Any:
    """Every array of a pytree on the host."""
    return jax.tree.map(np.asarray, tree)


def shape_of(instance: Any) -> dict[str, tuple[int, ...]]:
    """Field name to shape, for error messages."""
    return {f.name: np.shape(v) for f in fields(instance) if (v := getattr(instance, f.name)) is not None}
