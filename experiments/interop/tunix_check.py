"""Runs the methods of `tunix_methods.py` in Tunix 0.1.7: trains with each, then compares with grpo_jax.

    FOLDER/bin/python experiments/interop/tunix_check.py          # a minute of CPU time

The comparison is on one fixed batch. Tunix: the registered function on micro-batches of two groups, averaged
as Tunix averages them. grpo_jax: `losses.objective` on the whole mini-batch at once, masks from true lengths,
log-probs by a direct call of the model.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tunix_methods
from flax import nnx
from tunix.models.qwen3.model import ModelConfig, Qwen3
from tunix.rl import common, function_registry
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
from tunix.rl.rl_cluster import ClusterConfig, RLCluster, RLTrainingConfig, Role
from tunix.rl.rollout.base_rollout import RolloutConfig
from tunix.sft import utils

from grpo_jax.losses import aggregation, objective, recipes

PAD, STOP, FIRST = 0, 1, 2
"""Token ids: padding, end of sequence, and the first letter."""
VOCABULARY, PROMPT, COMPLETION, GROUP, PROMPTS = 32, 8, 12, 4, 4


class Letters:
    """The tokenizer Tunix asks for, by duck typing: one token per letter."""

    def encode(self, text, **kwargs):
        return [FIRST + ord(letter) - ord("a") for letter in text]

    def decode(self, ids, **kwargs):
        return "".join(chr(ord("a") + i - FIRST) for i in ids if i >= FIRST)

    def bos_id(self):
        return FIRST

    def eos_id(self):
        return STOP

    def pad_id(self):
        return PAD


def make_model(seed=0):
    config = ModelConfig(
        num_layers=2,
        vocab_size=VOCABULARY,
        embed_dim=32,
        hidden_dim=64,
        num_heads=2,
        head_dim=16,
        num_kv_heads=1,
        rope_theta=10_000,
        norm_eps=1e-6,
        use_tied_embedding=True,
    )
    return Qwen3(config, rngs=nnx.Rngs(seed))


def make_cluster(config, *, steps=3, temperature=1.0):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    return RLCluster(
        actor=make_model(),
        reference=make_model(),
        tokenizer=Letters(),
        cluster_config=ClusterConfig(
            role_to_mesh={role: mesh for role in (Role.ACTOR, Role.REFERENCE, Role.ROLLOUT)},
            rollout_engine="vanilla",
            offload_to_cpu=False,
            training_config=RLTrainingConfig(
                actor_optimizer=optax.adam(1e-3),
                eval_every_n_steps=1000,
                max_steps=steps * config.num_iterations,
                mini_batch_size=PROMPTS,
                train_micro_batch_size=PROMPTS // 2,
                rollout_micro_batch_size=PROMPTS,
                compute_logps_micro_batch_size=PROMPTS,
            ),
            rollout_config=RolloutConfig(
                max_tokens_to_generate=COMPLETION,
                max_prompt_length=PROMPT,
                kv_cache_size=PROMPT + COMPLETION + 8,
                temperature=temperature,
                top_p=1.0,
                eos_tokens=[STOP],
            ),
        ),
    )


def vowels(prompts, completions, **kwargs):
    """A reward that an untrained model earns now and then: is more than a fifth of the answer vowels?"""
    return [float(sum(letter in "aeiou" for letter in text) > len(text) / 5) for text in completions]


def train(name, config, steps=3):
    """A few steps of GRPOLearner; prints the loss and the mean reward of each."""
    cluster = make_cluster(config, steps=steps)
    before = jax.tree.map(jnp.copy, nnx.state(cluster.actor_trainer.model, nnx.Param))
    rewards = []

    def reward(prompts, completions, **kwargs):
        rewards.append(vowels(prompts, completions))
        return rewards[-1]

    # Tunix's sampler draws the same randomness at every call, so every step gets prompts of its own.
    letters = np.random.default_rng(0).integers(ord("a"), ord("z") + 1, (steps, PROMPTS, PROMPT))
    words = [{"prompts": np.array(["".join(map(chr, row)) for row in batch])} for batch in letters]
    GRPOLearner(rl_cluster=cluster, algo_config=config, reward_fns=[reward]).train(words)
    trainer = cluster.actor_trainer
    losses = trainer.metrics_logger.get_metric_history(trainer.metrics_prefix, "loss", "train")
    after = nnx.state(trainer.model, nnx.Param)
    moved = max(jax.tree.leaves(jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), before, after)))
    assert np.isfinite(losses).all() and moved > 0
    print(
        f"  {name:9s} {trainer.train_steps} optimizer steps, losses {' '.join(f'{x:+.4f}' for x in losses)}, "
        f"mean rewards {' '.join(f'{np.mean(x):.2f}' for x in rewards)}, parameters moved by {moved:.0e}"
    )


def fixed_batch(seed=0):
    """Prompts, ragged completions that end with the stop token, the true mask, and rewards."""
    random = np.random.default_rng(seed)
    rows = PROMPTS * GROUP
    lengths = random.integers(2, COMPLETION + 1, rows)
    here = np.arange(COMPLETION) < lengths[:, None]
    ids = np.where(here, random.integers(FIRST, VOCABULARY, (rows, COMPLETION)), PAD)
    ids[np.arange(rows), lengths - 1] = STOP
    prompts = np.repeat(random.integers(FIRST, VOCABULARY, (PROMPTS, PROMPT)), GROUP, 0)
    rewards = random.integers(0, 2, rows).astype(np.float32)
    return jnp.asarray(prompts), jnp.asarray(ids), jnp.asarray(here), rewards


def log_probs_of(model, prompts, ids, here):
    """log π of the completion tokens by a direct call: no mask from ids in it."""
    everything = jnp.concatenate([prompts, ids], axis=1)
    real = jnp.concatenate([jnp.ones_like(prompts, bool), here], axis=1)
    positions = jnp.broadcast_to(jnp.arange(everything.shape[1]), everything.shape)
    logits, _ = model(
        everything, positions=positions, cache=None, attention_mask=utils.make_causal_attn_mask(real)
    )
    table = jax.nn.log_softmax(logits[:, PROMPT - 1 : -1].astype(jnp.float32))
    return jnp.take_along_axis(table, ids[..., None], axis=-1)[..., 0]


def compare(name, method, loss_fn, config, *, drop_stop=False):
    """Largest relative difference between Tunix's and grpo_jax's loss and gradient on the fixed batch."""
    prompts, ids, here, rewards = fixed_batch()
    model = make_model()
    noise = 0.1 * jax.random.normal(jax.random.key(1), ids.shape)
    old = log_probs_of(model, prompts, ids, here) + noise  # as after some updates on the same rollout
    groups = tunix_methods.groups_of(len(ids), GROUP)
    history = objective.init_history(method)
    advantages, _, _ = objective.advantages(method, rewards=jnp.asarray(rewards), history=history, **groups)

    def exact(model):
        now = log_probs_of(model, prompts, ids, here)
        rows = {"loss_mask": here, "advantages": advantages}
        rows["weights"] = objective.weights(method, **rows, **groups)
        rows |= {"log_probs": now, "old_log_probs": old}
        return objective.loss(
            method, **rows, group_constants=objective.group_constants(method, **rows, **groups)
        )[0]

    seen = jnp.where(ids == STOP, PAD, ids) if drop_stop else ids

    def in_tunix(model):
        values = []
        for start in range(0, len(ids), 2 * GROUP):
            part = slice(start, start + 2 * GROUP)
            example = common.TrainExample(
                prompt_ids=prompts[part],
                prompt_mask=jnp.ones_like(prompts[part]),
                completion_ids=seen[part],
                completion_mask=seen[part] != PAD,
                advantages=advantages[part],
                ref_per_token_logps=None,
                old_per_token_logps=old[part],
            )
            values.append(loss_fn(model, example, algo_config=config, pad_id=PAD, eos_id=STOP)[0])
        return sum(values) / len(values)

    (want, want_gradient), (got, got_gradient) = (nnx.value_and_grad(f)(model) for f in (exact, in_tunix))
    norm = optax.tree.norm(want_gradient)
    off = optax.tree.norm(jax.tree.map(jnp.subtract, want_gradient, got_gradient)) / norm
    print(f"  {name:44s} loss {got:+.6f} against {want:+.6f}, gradient off by {off:.1e} of its norm")
    return float(off)


def registered(method):
    """Any recipe as a Tunix loss function, unregistered."""
    return lambda model, example, algo_config, pad_id, eos_id: tunix_methods.policy_loss(
        method, model, example, algo_config, pad_id, eos_id
    )


def compare_history():
    """HA-DW's estimator called once per micro-batch instead of once per batch."""
    rewards = fixed_batch()[3]
    estimates = {}
    for name, parts in (("whole", 1), ("parts", 2)):
        tunix_methods.register_ha_dw(name, recipes.ha_dw(recipes.grpo()))
        estimate = function_registry.get_advantage_estimator(name)
        for _ in range(2):  # the second batch meets a history
            estimates[name] = np.concatenate(
                [estimate(rewards=r, num_generations=GROUP) for r in np.split(rewards, parts)]
            )
    off = np.linalg.norm(estimates["whole"] - estimates["parts"]) / np.linalg.norm(estimates["whole"])
    print(f"  {'HA-DW per rollout micro-batch':44s} advantages off by {off:.1e} of their norm")


def compare_temperature(config, temperature=0.7):
    """Old log-probs as Tunix computes them against the trainer's, before any update: they should agree."""
    cluster = make_cluster(config, temperature=temperature)
    prompts, ids, here, _ = fixed_batch()
    old = cluster.get_old_per_token_logps(prompt_tokens=prompts, completion_tokens=ids)
    graphdef, state = nnx.split(cluster.actor_trainer.model)
    now = common.compute_per_token_logps(graphdef, state, prompts, ids, PAD, STOP, temperature=temperature)
    gap = np.abs(np.asarray(now - old))[np.asarray(here)].mean()
    print(
        f"  {f'old log-probs at temperature {temperature}':44s} mean |log ratio| {gap:.3f} before any update"
    )


def main():
    print("Training")
    train(
        "balanced", GRPOConfig(policy_loss_fn="balanced", num_generations=GROUP, num_iterations=2, beta=0.0)
    )
    train("ha_dw", GRPOConfig(advantage_estimator="ha_dw", num_generations=GROUP, num_iterations=2, beta=0.0))
    train("dfpo", GRPOConfig(policy_loss_fn="dfpo", num_generations=GROUP, num_iterations=2, beta=0.0))
    config = GRPOConfig(num_generations=GROUP, beta=0.0)
    config.temperature = 1.0  # the learner sets it at run time

    print("One batch, Tunix in two micro-batches against grpo_jax on the whole")
    for name in ("balanced", "dfpo"):
        method = (
            recipes.balanced()
            if name == "balanced"
            else recipes.dfpo(recipes.grpo(aggregation=aggregation.token))
        )
        assert compare(name, method, function_registry.get_policy_loss_fn(name), config) < 1e-4
    on_balanced = recipes.ha_dw(recipes.balanced())
    assert compare("balanced on HA-DW's advantages", on_balanced, registered(on_balanced), config) < 1e-4

    print("Where Tunix makes a rule inexact")
    dapo = recipes.dapo()
    compare("batch_token per micro-batch", dapo, registered(dapo), config)
    balanced = recipes.balanced()
    compare(
        "balanced, stop token dropped by the sampler", balanced, registered(balanced), config, drop_stop=True
    )
    compare_history()
    compare_temperature(config)


if __name__ == "__main__":
    main()
