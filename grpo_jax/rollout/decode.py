"""The device side of sampling: five pure programs over a fixed number of slots.

`prefill` computes prompts once for their whole group, `admit` seats completions in free slots and draws their
first token, `decode` draws a token per slot and step until there is a reason to stop; `shrink` and `widen`
change how many slots and columns there are. Which completion goes where is the host's business (`schedule.py`).
"""

from dataclasses import dataclass, field, replace
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int, Key

from grpo_jax.models.axes import constrain
from grpo_jax.models.config import ModelConfig
from grpo_jax.rollout import cache as kv
from grpo_jax.rollout.keys import uniforms
from grpo_jax.rollout.sampling import Draw, choose


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Slots:
    """The completions being sampled. Entries at and beyond `position` are zero."""

    keys: Key[Array, "S"]
    prompt_lengths: Int[Array, "S"]
    limits: Int[Array, "S"]
    """Tokens allowed."""
    starts: Int[Array, "S"]
    """Tokens of the completion that were there before: noise goes on from this position."""
    position: Int[Array, "S"]
    """Tokens drawn so far."""
    active: Bool[Array, "S"]
    stopped: Bool[Array, "S"]
    ids: Int[Array, "S T"]
    log_probs: Float[Array, "S T"]
    full_log_probs: Float[Array, "S T"]
    seen: Bool[Array, "S V"] | None
    """Tokens of prompt and completion so far; kept only for a repetition penalty."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """Everything that lives on the device between two programs."""

    cache: kv.Cache
    slots: Slots
    first_logits: Float[Array, "R V"]
    """What follows each row's prompt: every completion of it draws its first token from here."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Rules:
    """How tokens are drawn and when they end a completion: data, so that other values need no other
    program.
    """

    knobs: dict[str, Float[Array, ""]]
    """Those of temperature, top_p and min_p that are in use; none is greedy."""
    stop_ids: Int[Array, "n"]
    """Padded with −1, which no token is."""
    bias: Float[Array, "V"] | None
    repetition_penalty: Float[Array, ""] | None
    top_k: int = field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Arrivals:
    """Completions to seat. An entry whose slot lies beyond the last is padding."""

    slots: Int[Array, "A"]
    rows: Int[Array, "A"]
    keys: Key[Array, "A"]
    prompt_lengths: Int[Array, "A"]
    limits: Int[Array, "A"]
    starts: Int[Array, "A"]
    prompt_ids: Int[Array, "A P"]


def start(
    config: ModelConfig,
    *,
    rows: int,
    prompt_tokens: int,
    slots: int,
    columns: int,
    max_tokens: int,
    penalised: bool,
    positions_first: bool | None = None,
) -> State:
    """Empty rows and free slots; see `cache.empty` for the order of the cache."""

    def zeros(*shape, dtype=jnp.int32):
        return jnp.zeros(shape, dtype)  # a buffer each: they are donated to the first program

    return State(
        cache=kv.empty(
            config,
            rows=rows,
            prompt_tokens=prompt_tokens,
            slots=slots,
            tokens=columns,
            positions_first=positions_first,
        ),
        slots=Slots(
            keys=jax.random.split(jax.random.key(0, impl="threefry2x32"), slots),
            prompt_lengths=zeros(slots),
            limits=zeros(slots),
            starts=zeros(slots),
            position=zeros(slots),
            active=zeros(slots, dtype=bool),
            stopped=zeros(slots, dtype=bool),
            ids=zeros(slots, max_tokens),
            log_probs=zeros(slots, max_tokens, dtype=jnp.float32),
            full_log_probs=zeros(slots, max_tokens, dtype=jnp.float32),
            seen=zeros(slots, config.vocab_size, dtype=bool) if penalised else None,
        ),
        first_logits=zeros(rows, config.vocab_size, dtype=jnp.float32),
    )


def placed(state: State) -> State:
    """`state` as it lies on the mesh this is traced under: cache and logits split, what the host reads whole.

    Every program leaves it so, that the next one need not be compiled again.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return state

    def whole(x):
        return jax.lax.with_sharding_constraint(x, PartitionSpec())

    return State(
        cache=kv.placed(state.cache),
        slots=jax.tree.map(whole, state.slots),
        first_logits=constrain(state.first_logits, "rows"),
    )


@partial(
    jax.jit,
    static_argnames=(
        "config", "rows", "prompt_tokens", "slots", "columns", "max_tokens", "penalised", "positions_first"
    ),
)  # fmt: skip
def start_on_mesh(**sizes) -> State:
    """`start`, with no array ever whole on one device."""
    return placed(start(**sizes))


@partial(jax.jit, static_argnames="graphdef", donate_argnames="state")
def prefill(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    state: State,
    rows: Int[Array, "n"],
    ids: Int[Array, "n P"],
    lengths: Int[Array, "n"],
) -> State:
    """Reads prompts into rows. A row beyond the last is padding."""
    decoder = nnx.merge(graphdef, params)
    (n, P), config = ids.shape, decoder.config
    empty = jnp.zeros((config.num_layers, n, P, config.num_kv_heads, config.head_dim), config.dtype)
    positions = jnp.broadcast_to(jnp.arange(P), (n, P))
    hidden, (key, value) = decoder(ids, positions, kv.prefill(lengths, P), (empty, empty))
    last = jnp.take_along_axis(hidden, (lengths - 1)[:, None, None], axis=1)[:, 0]
    logits = constrain(decoder.logits(last), "rows")
    return placed(
        replace(
            state,
            cache=kv.store(state.cache, rows, key, value),
            first_logits=state.first_logits.at[rows].set(logits, mode="drop"),
        )
    )


@partial(jax.jit, donate_argnames="state")
def admit(state: State, arrivals: Arrivals, rules: Rules) -> State:
    """Seats completions in their slots and draws their first token from their prompt's logits."""
    old, at = state.slots, arrivals.slots

    def put(field, value):
        return field.at[at].set(value, mode="drop")

    seen = None
    if old.seen is not None:
        P = arrivals.prompt_ids.shape[1]
        real = jnp.arange(P)[None, :] < arrivals.prompt_lengths[:, None]
        ids = jnp.where(real, arrivals.prompt_ids, old.seen.shape[1])
        entries = jnp.arange(ids.shape[0])[:, None]
        in_prompt = jnp.zeros((ids.shape[0], old.seen.shape[1]), bool).at[entries, ids].set(True, mode="drop")
        seen = put(old.seen, in_prompt)
    slots = Slots(
        keys=put(old.keys, arrivals.keys),
        prompt_lengths=put(old.prompt_lengths, arrivals.prompt_lengths),
        limits=put(old.limits, arrivals.limits),
        starts=put(old.starts, arrivals.starts),
        position=put(old.position, 0),
        active=put(old.active, True),
        stopped=put(old.stopped, False),
        ids=put(old.ids, 0),
        log_probs=put(old.log_probs, 0.0),
        full_log_probs=put(old.full_log_probs, 0.0),
        seen=seen,
    )
    here = jnp.minimum(at, old.position.shape[0] - 1)
    draw = _draw(
        state.first_logits[arrivals.rows],
        arrivals.keys,
        arrivals.starts,
        None if seen is None else seen[here],
        rules,
    )
    zeros = jnp.zeros(old.position.shape, jnp.int32)
    spread = jax.tree.map(lambda x: zeros.astype(x.dtype).at[at].set(x, mode="drop"), draw)
    arrived = (zeros > 0).at[at].set(True, mode="drop")
    return placed(replace(state, slots=_record(slots, spread, arrived, rules)))


@partial(jax.jit, static_argnames="graphdef", donate_argnames="state")
def decode(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    state: State,
    seating: kv.Seating,
    rules: Rules,
    most_steps: Int[Array, ""],
    leave_at: Int[Array, ""],
) -> tuple[State, Int[Array, ""]]:
    """A token per active slot and step; returns how many steps it took. `leave_at` is a number of slots."""
    decoder = nnx.merge(graphdef, params)

    def going(carry):
        _, slots, step = carry
        active = slots.active.sum()
        return (
            (step < most_steps)  # the columns or the host's patience end here
            & (active > 0)  # nobody is left
            & (active > leave_at)  # enough slots are free for the host to refill them, or to drop them
        )

    def advance(carry):
        cache, slots, step = carry
        column = jnp.maximum(slots.position - 1, 0)
        token = jnp.take_along_axis(slots.ids, column[:, None], axis=1)
        position = (slots.prompt_lengths + column)[:, None]
        attend = kv.decode(cache, seating, slots.prompt_lengths, column)
        hidden, cache = decoder(token, position, attend, cache)
        logits = constrain(decoder.logits(hidden[:, 0]), "rows")  # the vocabulary whole: it is drawn from
        draw = _draw(logits, slots.keys, slots.starts + slots.position, slots.seen, rules)
        return cache, _record(slots, draw, slots.active, rules), step + 1

    cache, slots, steps = jax.lax.while_loop(going, advance, (state.cache, state.slots, jnp.int32(0)))
    return placed(replace(state, cache=cache, slots=slots)), steps


@jax.jit  # nothing to donate: the shapes change
def shrink(state: State, rows: Int[Array, "R"], slots: Int[Array, "S"]) -> State:
    """Only the given rows and slots, in that order."""
    return placed(
        State(
            cache=kv.kept(state.cache, rows=rows, slots=slots),
            slots=jax.tree.map(lambda x: x[slots], state.slots),
            first_logits=state.first_logits[rows],
        )
    )


@partial(jax.jit, static_argnames="columns")
def widen(state: State, *, columns: int) -> State:
    """Room for `columns` tokens in every slot."""
    return placed(replace(state, cache=kv.widened(state.cache, columns)))


def _draw(logits, keys, positions, seen, rules: Rules) -> Draw:
    """One token per row, from the logits as penalties and biases leave them."""
    adjusted = None
    if rules.repetition_penalty is not None:
        penalised = jnp.where(
            logits > 0, logits / rules.repetition_penalty, logits * rules.repetition_penalty
        )
        adjusted = jnp.where(seen, penalised, logits)
    if rules.bias is not None:
        adjusted = (logits if adjusted is None else adjusted) + rules.bias[None, :]
    return choose(logits, uniforms(keys, positions), adjusted=adjusted, top_k=rules.top_k, **rules.knobs)


def _record(slots: Slots, draw: Draw, drawn: Bool[Array, "S"], rules: Rules) -> Slots:
    """Appends the drawn token where one was drawn, and ends completions that it stops or that are full."""
    S, T = slots.ids.shape
    at = (jnp.arange(S), jnp.where(drawn, slots.position, T))  # T is beyond the last: dropped
    position = slots.position + drawn
    stopped = drawn & (draw.ids[:, None] == rules.stop_ids[None, :]).any(-1)
    seen = slots.seen
    if seen is not None:
        seen = seen.at[jnp.arange(S), jnp.where(drawn, draw.ids, seen.shape[1])].set(True, mode="drop")
    return replace(
        slots,
        position=position,
        active=slots.active & ~stopped & (position < slots.limits),
        stopped=slots.stopped | stopped,
        ids=slots.ids.at[at].set(draw.ids, mode="drop"),
        log_probs=slots.log_probs.at[at].set(draw.log_probs, mode="drop"),
        full_log_probs=slots.full_log_probs.at[at].set(draw.full_log_probs, mode="drop"),
        seen=seen,
    )
