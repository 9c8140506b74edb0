"""A run or a model to try out: prompts in; completions out, with rewards where there are answers to judge by.

sampler = grpo_jax.sampling.open_sampler("runs/run")
for completion in sampler("37+85=", samples=4):
    print(completion.text, completion.reward)
"""

from grpo_jax.sampling.sampler import Completion, Sampler, open_sampler

__all__ = ["Completion", "Sampler", "open_sampler"]
