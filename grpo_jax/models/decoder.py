"""The decoder: one pre-norm transformer with switches for the Llama, Qwen2 and Qwen3 families.

Parameters of all blocks are stacked along a leading layer axis and the blocks run under one scan, so compile
time does not grow with depth. Norms, rotary angles, softmax and head are float32; the rest computes in
`config.dtype`.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from grpo_jax.models import rope
from grpo_jax.models.attention import Attend
from grpo_jax.models.axes import constrain, lookup
from grpo_jax.models.config import LoraConfig, ModelConfig
from grpo_jax.models.head import Head
from grpo_jax.models.reductions import along_rows

SAVED = {
    "full": None,
    # Attention's products have batch dimensions, and scores are what is largest: they are computed again.
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}
"""What each kind of rematerialisation keeps of a block, by its name in the config."""


class Adapter(nnx.Param):
    """A parameter of a LoRA adapter: with adapters present, the only kind that trains."""


class LowRank(nnx.Module):
    """(alpha / rank) x A B. Stored in float32: these are master weights even on a bfloat16 base."""

    def __init__(self, layers: int, fan_in: int, fan_out: int, lora: LoraConfig, *, rngs: nnx.Rngs):
        self.a = Adapter(_normal(rngs, (layers, fan_in, lora.rank), fan_in**-0.5, "float32"))
        self.b = Adapter(jnp.zeros((layers, lora.rank, fan_out), jnp.float32))
        self.scale = lora.alpha / lora.rank

    def __call__(self, x: Float[Array, "... I"]) -> Float[Array, "... O"]:
        return self.scale * ((x @ self.a[...].astype(x.dtype)) @ self.b[...].astype(x.dtype))


class Linear(nnx.Module):
    """x @ kernel (+ bias, + adapter): stored for all layers as [layers, in, out], applied to one."""

    def __init__(
        self,
        fan_in: int,
        fan_out: int,
        *,
        bias: bool,
        lora: LoraConfig | None,
        std: float,
        config: ModelConfig,
        rngs: nnx.Rngs,
    ):
        layers = config.num_layers
        self.kernel = nnx.Param(_normal(rngs, (layers, fan_in, fan_out), std, config.param_dtype))
        self.bias = nnx.Param(jnp.zeros((layers, fan_out), config.param_dtype)) if bias else None
        self.adapter = LowRank(layers, fan_in, fan_out, lora, rngs=rngs) if lora else None
        self.dtype = config.dtype

    def __call__(self, x: Float[Array, "... I"]) -> Float[Array, "... O"]:
        # As one matrix: the weight's gradient is then one product, where XLA on CPU would transpose activations for it.
        flat = product(x.reshape(-1, x.shape[-1]), self.kernel[...].astype(self.dtype))
        out = flat.reshape(*x.shape[:-1], -1)
        if self.bias is not None:
            out = out + _trailing(self.bias[...].astype(self.dtype), out.ndim)
        return out if self.adapter is None else out + self.adapter(x)


class Blocks(nnx.Module):
    """Attention and gated MLP of every layer, stacked; called on one layer's slice of the parameters."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.config = config
        width, mlp, head_dim = config.width, config.mlp_width, config.head_dim
        q_width, kv_width = config.num_heads * head_dim, config.num_kv_heads * head_dim

        def linear(name, fan_in, fan_out, bias, *, residual=False):
            # Each layer adds twice to the residual stream; this keeps its variance from growing with depth.
            std = fan_in**-0.5 * ((2 * config.num_layers) ** -0.5 if residual else 1.0)
            lora = config.lora if config.lora and name in config.lora.targets else None
            return Linear(fan_in, fan_out, bias=bias, lora=lora, std=std, config=config, rngs=rngs)

        self.attention_norm = nnx.Param(_ones((config.num_layers, width), config))
        self.query = linear("query", width, q_width, config.qkv_bias)
        self.key = linear("key", width, kv_width, config.qkv_bias)
        self.value = linear("value", width, kv_width, config.qkv_bias)
        self.query_norm = nnx.Param(_ones((config.num_layers, head_dim), config)) if config.qk_norm else None
        self.key_norm = nnx.Param(_ones((config.num_layers, head_dim), config)) if config.qk_norm else None
        self.out = linear("out", q_width, width, config.out_bias, residual=True)
        self.mlp_norm = nnx.Param(_ones((config.num_layers, width), config))
        self.gate = linear("gate", width, mlp, config.mlp_bias)
        self.up = linear("up", width, mlp, config.mlp_bias)
        self.down = linear("down", mlp, width, config.mlp_bias, residual=True)

    def __call__(self, x, cos, sin, attend: Attend, layer, window, cache):
        eps = self.config.norm_eps
        out, cache = self._attention(
            rms_norm(x, self.attention_norm, eps), cos, sin, attend, layer, window, cache
        )
        x = constrain(x + out, "rows")
        h = rms_norm(x, self.mlp_norm, eps)
        return constrain(x + self.down(jax.nn.silu(self.gate(h)) * self.up(h)), "rows"), cache

    def _attention(self, h, cos, sin, attend, layer, window, cache):
        heads, kv_heads, head_dim = self.config.num_heads, self.config.num_kv_heads, self.config.head_dim
        query = self.query(h).reshape(*h.shape[:-1], heads, head_dim)
        key = self.key(h).reshape(*h.shape[:-1], kv_heads, head_dim)
        value = self.value(h).reshape(*h.shape[:-1], kv_heads, head_dim)
        if self.query_norm is not None:
            query = rms_norm(query, self.query_norm, self.config.norm_eps)
            key = rms_norm(key, self.key_norm, self.config.norm_eps)
        query, key = rope.rotate(query, cos, sin), rope.rotate(key, cos, sin)
        out, cache = attend(query, key, value, layer, window, cache)
        return self.out(out.reshape(*h.shape[:-1], heads * head_dim)), cache


class Decoder(nnx.Module):
    """Token ids to hidden states to logits."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        check(config)
        self.config = config
        std, dtype = config.width**-0.5, config.param_dtype
        self.embedding = nnx.Param(_normal(rngs, (config.vocab_size, config.width), std, dtype))
        self.blocks = Blocks(config, rngs=rngs)
        self.final_norm = nnx.Param(_ones((config.width,), config))
        head_shape = (config.width, config.vocab_size)
        self.head = None if config.tied_embeddings else nnx.Param(_normal(rngs, head_shape, std, dtype))

    def __call__(
        self, ids: Int[Array, "... S"], positions: Int[Array, "... S"], attend: Attend, cache: Any = None
    ) -> tuple[Float[Array, "... S D"], Any]:
        """Hidden states after the final norm, and the cache as `attend` left it.

        Args:
          ids: token ids.
          positions: position of every token, from 0 at its sequence's start.
          attend: called once per layer; see `grpo_jax.models.attention`.
          cache: any pytree that `attend` reads and returns updated; it is carried through the layers.
        """
        config = self.config
        x = lookup(self.embedding[...], ids).astype(config.dtype)
        cos, sin = rope.cos_sin(
            positions, head_dim=config.head_dim, theta=config.rope_theta, scaling=config.rope_scaling
        )
        structure, stacked = nnx.split(self.blocks)

        def body(carry, xs):
            x, cache = carry
            params, layer, window = xs
            return nnx.merge(structure, params)(x, cos, sin, attend, layer, window, cache), None

        if config.remat != "none":
            # A scan already keeps XLA from undoing the recomputation; barriers would only cost time.
            body = jax.checkpoint(body, prevent_cse=False, policy=SAVED[config.remat])
        windows = jnp.asarray(config.layer_windows, jnp.int32) if any(config.layer_windows) else None
        layers = jnp.arange(config.num_layers, dtype=jnp.int32)
        (x, cache), _ = jax.lax.scan(body, (x, cache), (stacked, layers, windows))
        return rms_norm(x, self.final_norm, config.norm_eps), cache

    @property
    def unembedding(self) -> Head:
        """The matrix from hidden states to logits: a head, or the embedding where they are tied."""
        return Head(self.embedding[...], 0) if self.head is None else Head(self.head[...], 1)

    def logits(self, hidden: Float[Array, "... D"]) -> Float[Array, "... V"]:
        """Float32 logits, to sample from; `grpo_jax.models.head` has what training needs of them."""
        return self.unembedding.logits(constrain(hidden, "rows"))


def product(x: Float[Array, "N I"], kernel: Any) -> Float[Array, "N O"]:
    """x @ kernel, which the sampler may have quantised (`rollout.weights`)."""
    if isinstance(kernel, jax.Array):
        return x @ kernel
    import qwix

    return qwix.dot_general(x, kernel, (((1,), (0,)), ((), ())))


def rms_norm(x: Float[Array, "... D"], weight: nnx.Param, eps: float) -> Float[Array, "... D"]:
    """x / rms(x) · weight, computed in float32 and returned in x's dtype."""
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(along_rows(jnp.mean, jnp.square(wide))[..., None] + eps)
    return (wide * scale * _trailing(weight[...].astype(jnp.float32), x.ndim)).astype(x.dtype)


def check(config: ModelConfig) -> None:
    """Raise on an architecture that cannot be built, naming the field."""
    for name in ("vocab_size", "num_layers", "width", "mlp_width", "num_heads", "num_kv_heads", "head_dim"):
        if getattr(config, name) < 1:
            raise ValueError(f"model.{name} is {getattr(config, name)}; expected at least 1")
    if config.head_dim % 2:
        raise ValueError(f"model.head_dim is {config.head_dim}; rotary positions need an even number")
    if config.num_heads % config.num_kv_heads:
        raise ValueError(
            f"model.num_heads is {config.num_heads};"
            f" expected a multiple of num_kv_heads, {config.num_kv_heads}"
        )
    if not 0 < config.rope_theta < math.inf:
        raise ValueError(f"model.rope_theta is {config.rope_theta}; expected a positive number")
    if not 0 <= config.norm_eps < math.inf:
        raise ValueError(f"model.norm_eps is {config.norm_eps}; expected 0 or more")
    if config.rope_scaling and not 0 < config.rope_scaling.factor < math.inf:
        raise ValueError(
            f"model.rope_scaling.factor is {config.rope_scaling.factor}; expected a positive number"
        )
    if config.remat not in ("none", *SAVED):
        raise ValueError(f"model.remat is {config.remat!r}; expected none, {' or '.join(SAVED)}")
    if config.lora and (config.lora.rank < 1 or not config.lora.targets):
        raise ValueError(f"model.lora is {config.lora}; expected a rank of at least 1 and some targets")
    if config.lora and not math.isfinite(config.lora.alpha):
        raise ValueError(f"model.lora.alpha is {config.lora.alpha}; expected a finite number")
    if any(window < 0 for window in config.layer_windows):
        raise ValueError(f"model.layer_windows is {config.layer_windows}; expected 0 (full) or more in each")
    if config.layer_windows and len(config.layer_windows) != config.num_layers:
        raise ValueError(
            f"model.layer_windows has {len(config.layer_windows)} entries;"
            f" expected one per layer, {config.num_layers}"
        )


def _normal(rngs: nnx.Rngs, shape: tuple[int, ...], std: float, dtype: str) -> Array:
    return (std * jax.random.normal(rngs.params(), shape, jnp.float32)).astype(dtype)


def _ones(shape: tuple[int, ...], config: ModelConfig) -> Array:
    return jnp.ones(shape, config.param_dtype)


def _trailing(vector: Float[Array, "D"], rank: int) -> Float[Array, "... D"]:
    return vector.reshape((1,) * (rank - 1) + vector.shape)
