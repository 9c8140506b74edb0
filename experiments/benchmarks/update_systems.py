"""The systems of `update.py`: one policy update of fixed weights on a fixed batch, each in its own process.

    python update_systems.py SYSTEM     # answers requests on stdin; see `turns.py`

The batch: B prompts of one length, G completions each, no padding, advantages given, no KL term, old log-probs those
of the policy itself.
"""

import re
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from turns import answer

LEARNING_RATE, CLIP = 1e-6, 0.2


class System(NamedTuple):
    """One system with a model and a batch."""

    gradients: Callable[[], tuple[float, dict[str, np.ndarray]]]
    """The loss, and every gradient under its Transformers name."""
    step: Callable[[], None]
    """Takes one AdamW step and waits for it."""
    temporary_bytes: Callable[[], int] | None = None
    """Compiles the step, and says what it needs beside its arguments and results."""


def native(
    folder: Path, batch, *, layout: str, head_memory_mib: int = 512, log_softmax: bool = False
) -> System:
    """grpo_jax, as `grpo-jax train` would compile it with its defaults and `model.remat` "dots".

    With `log_softmax` the head is what one would write first: all logits, `jax.nn.log_softmax`, and autodiff.
    """
    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx

    from grpo_jax.losses import recipes
    from grpo_jax.models import loading, names
    from grpo_jax.training import layouts, log_probs, sharding
    from grpo_jax.training.update import make_update
    from grpo_jax.types import Batch, TrainState

    config = replace(loading.read_config(str(folder)), remat="dots")
    graphdef, params = nnx.split(loading.load_decoder(str(folder), config=config))
    N, T = batch["completion_ids"].shape
    G = int(batch["group_size"])
    rows = Batch(
        prompt_ids=batch["prompt_ids"],
        prompt_lengths=np.full(N, batch["prompt_ids"].shape[1], np.int32),
        completion_ids=batch["completion_ids"],
        completion_lengths=np.full(N, T, np.int32),
        loss_mask=np.ones((N, T), bool),
        group_ids=np.repeat(np.arange(N // G, dtype=np.int32), G),
        advantages=batch["advantages"],
        sampler_log_probs=np.zeros((N, T), np.float32),
        sampler_full_log_probs=np.zeros((N, T), np.float32),
    )
    mesh = sharding.make_mesh(1)

    def of_all_logits(params, rows):
        decoder, arranged = nnx.merge(graphdef, params), layouts.plain(rows)
        hidden, _ = decoder(arranged.ids, arranged.positions, arranged.attend)
        log_p = jax.nn.log_softmax(decoder.logits(arranged.predicting(hidden)))
        chosen = jnp.take_along_axis(log_p, arranged.targets[..., None], axis=-1)[..., 0]
        return chosen, -(jnp.exp(log_p) * log_p).sum(-1)

    def updater(optimizer):
        update = make_update(
            log_probs=of_all_logits
            if log_softmax
            else log_probs.make_sized_log_probs(
                graphdef,
                temperature=1.0,
                kept_logits=log_probs.tokens_within(head_memory_mib, vocab_size=config.vocab_size),
                layout=layout,
                group_size=G,
                number_of_sizes=1,
            ),
            objective=recipes.grpo(clip_low=CLIP, clip_high=CLIP),
            optimizer=optimizer,
            mesh=mesh,
            num_groups=N // G,
            micro_batches=1,
            vocab_size=config.vocab_size,
        )
        copied = jax.tree.map(jnp.copy, params)
        state = TrainState.first(params=copied, optimizer=optimizer.init(params), key=jax.random.key(0))
        return update, sharding.replicate(state, mesh)  # as in training: or the second step compiles anew

    def gradients():
        # An optimizer that changes nothing and remembers the gradient.
        remember = optax.GradientTransformation(
            lambda params: jax.tree.map(jnp.zeros_like, params),
            lambda gradient, state, params: (jax.tree.map(jnp.zeros_like, gradient), gradient),
        )
        update, state = updater(remember)
        state, metrics = update(state, rows)
        found = {}
        for path, variable in nnx.to_flat_state(state.optimizer):
            name = ".".join(path)
            for slot in names.slots(name, config):
                own = variable.get_value() if slot.layer is None else variable.get_value()[slot.layer]
                found[slot.name] = np.asarray(own.T if slot.transposed else own)
        return float(metrics["loss/policy"]), found

    update, state = updater(optax.adamw(LEARNING_RATE, weight_decay=0.0))

    def step():
        nonlocal state, params
        params = None  # the state has a copy, and all systems have to fit beside each other
        state, metrics = update(state, rows)
        jax.block_until_ready((state.params, metrics))

    def temporary_bytes():
        return update.lower(state, rows).compile().memory_analysis().temp_size_in_bytes

    return System(gradients, step, temporary_bytes)


def tunix(folder: Path, batch) -> System:
    """Tunix 0.1.7: its loss function, and its optimizer wrapper under one jit."""
    import json

    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx
    from tunix.models.llama3 import model as llama
    from tunix.models.llama3.params import create_model_from_safe_tensors
    from tunix.rl import algo_core, common
    from tunix.rl.grpo.grpo_learner import GRPOConfig

    fields = json.loads((folder / "config.json").read_text())
    config = llama.ModelConfig(
        num_layers=fields["num_hidden_layers"],
        vocab_size=fields["vocab_size"],
        embed_dim=fields["hidden_size"],
        hidden_dim=fields["intermediate_size"],
        num_heads=fields["num_attention_heads"],
        head_dim=fields["head_dim"],
        num_kv_heads=fields["num_key_value_heads"],
        rope_theta=int(
            fields["rope_theta"] if "rope_theta" in fields else fields["rope_parameters"]["rope_theta"]
        ),
        norm_eps=fields["rms_norm_eps"],
        weight_tying=fields["tie_word_embeddings"],
    )
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    model = create_model_from_safe_tensors(str(folder), config, mesh=mesh, dtype=jnp.float32)
    algorithm = GRPOConfig(num_generations=int(batch["group_size"]), beta=0.0, epsilon=CLIP)
    algorithm.temperature = 1.0  # the learner sets it at run time
    example = common.TrainExample(
        prompt_ids=jnp.asarray(batch["prompt_ids"]),
        prompt_mask=jnp.ones_like(batch["prompt_ids"]),
        completion_ids=jnp.asarray(batch["completion_ids"]),
        completion_mask=jnp.ones_like(batch["completion_ids"]),
        advantages=jnp.asarray(batch["advantages"]),
        ref_per_token_logps=None,
        old_per_token_logps=None,
    )

    def loss(model, example):
        return algo_core.grpo_loss_fn(model, example, algorithm, 0, 2)

    def gradients():
        (value, _), found = nnx.jit(nnx.value_and_grad(loss, has_aux=True))(model, example)
        named = {}
        for path, variable in nnx.to_flat_state(found):
            name = ".".join(map(str, path))
            array = np.asarray(variable.get_value())
            transformers, shape = tunix_name(name, array)
            named[transformers] = array.reshape(shape).T if array.ndim > 1 and "embed" not in name else array
        return float(value), named

    optimizer = nnx.Optimizer(model, optax.adamw(LEARNING_RATE, weight_decay=0.0), wrt=nnx.Param)

    @nnx.jit
    def update(model, optimizer, example):
        (value, _), found = nnx.value_and_grad(loss, has_aux=True)(model, example)
        optimizer.update(model, found)
        return value

    def step():
        jax.block_until_ready((update(model, optimizer, example), nnx.state(model)))

    def temporary_bytes():
        structure, state = nnx.split((model, optimizer))

        def pure(state, example):
            merged = nnx.merge(structure, state)
            return update(*merged, example), nnx.state(merged)

        compiled = jax.jit(pure, donate_argnums=0).lower(state, example).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    return System(gradients, step, temporary_bytes)


def tunix_name(name: str, array) -> tuple[str, tuple[int, ...]]:
    """A Tunix parameter's Transformers name, and its shape as [in, out]."""
    renamed = {
        "embedder.input_embedding": "model.embed_tokens.weight",
        "final_norm.w": "model.norm.weight",
    }
    if name in renamed:
        return renamed[name], array.shape
    layer, rest = re.fullmatch(r"layers\.(\d+)\.(.+)\.(?:w|kernel)", name).groups()
    shape = array.shape
    if array.ndim == 3:  # [D, H, h], but the output projection is [H, h, D]
        a, b, c = shape
        shape = (a * b, c) if rest == "attn.o_proj" else (a, b * c)
    return f"model.layers.{layer}.{rest.replace('attn.', 'self_attn.')}.weight", shape


def trl(folder: Path, batch) -> System:
    """TRL 1.16.0: the trainer's own loss, backward and torch's AdamW."""
    import torch
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    G = int(batch["group_size"])
    trainer = GRPOTrainer(
        model=str(folder),
        reward_funcs=lambda completions, **columns: [0.0] * len(completions),
        args=GRPOConfig(
            output_dir=str(folder / "trl"),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to=[],
            save_strategy="no",
            num_generations=G,
            per_device_train_batch_size=G,
            loss_type="grpo",
            beta=0.0,
            epsilon=CLIP,
            model_init_kwargs={"dtype": "float32"},
            dataloader_pin_memory=False,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["1+1="] * G}),
    )
    trainer.current_gradient_accumulation_steps = 1
    model = trainer.model.train()
    inputs = {name: torch.tensor(batch[name]).long() for name in ("prompt_ids", "completion_ids")}
    inputs |= {
        "prompt_mask": torch.ones_like(inputs["prompt_ids"]),
        "completion_mask": torch.ones_like(inputs["completion_ids"]),
        "advantages": torch.tensor(batch["advantages"]),
        "num_items_in_batch": torch.tensor(batch["completion_ids"].size),
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)

    def backward():
        optimizer.zero_grad()
        loss = trainer._compute_loss(model, inputs)
        loss.backward()
        return float(loss)

    def gradients():
        value = backward()
        return value, {n: p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None}

    def step():
        backward()
        optimizer.step()

    return System(gradients, step)


SYSTEMS = {
    "group": lambda *a: native(*a, layout="group"),
    "plain": lambda *a: native(*a, layout="plain"),
    "kept logits": lambda *a: native(*a, layout="plain", head_memory_mib=1 << 20),
    "full logits": lambda *a: native(*a, layout="plain", log_softmax=True),
    "tunix": tunix,
    "trl": trl,
}


def matmul_rate(size: int = 1536, repeats: int = 3) -> float:
    """float32 FLOP/s of the best of some square matmuls under jax: what this machine can do at this moment."""
    import jax
    import jax.numpy as jnp

    multiply = jax.jit(jnp.matmul)
    x = jnp.ones((size, size), jnp.float32)
    multiply(x, x).block_until_ready()

    def once():
        begin = time.perf_counter()
        for _ in range(4):
            y = multiply(x, x)
        y.block_until_ready()
        return 4 * 2 * size**3 / (time.perf_counter() - begin)

    return max(once() for _ in range(repeats))


def main(system: str) -> None:
    """Answers {"open": folder}, then {"gradients": file}, {"step": true}, {"temporary_bytes": true}, {"matmul": true}."""
    ready = None

    def respond(**request):
        nonlocal ready
        if "matmul" in request:
            return matmul_rate()
        if "open" in request:
            folder = Path(request["open"])
            ready = SYSTEMS[system](folder, np.load(folder / "batch.npz"))
            return True
        if "temporary_bytes" in request:
            return ready.temporary_bytes()
        if "gradients" in request:
            loss, found = ready.gradients()
            np.savez(request["gradients"], **found)
            return loss
        begin = time.perf_counter()
        ready.step()
        return time.perf_counter() - begin

    answer(sys.stdin, respond)


if __name__ == "__main__":
    main(sys.argv[1])
