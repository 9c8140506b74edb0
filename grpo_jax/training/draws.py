"""From a run's config to the sampler's settings: how its completions are drawn, and what ends them."""

from grpo_jax.config import RolloutConfig
from grpo_jax.environments import Environment
from grpo_jax.models.tokenizers import Tokenizer
from grpo_jax.rollout.settings import Sampling
from grpo_jax.rollout.stops import split_stops


def sampling_of(
    options: RolloutConfig,
    *,
    temperature: float | None = None,
    group_size: int | None = None,
    tokenizer: Tokenizer | None = None,
    environment: Environment | None = None,
) -> Sampling:
    """How a run with these options samples.

    Args:
        options: the run's.
        temperature: in place of the options'. At 0 the likeliest token is taken, and nothing is left to cut off.
        group_size: in place of the options'.
        tokenizer: whose stop tokens end a completion; without one only the length does, which is all that shapes need.
        environment: whose stop strings end a turn too.

    Raises:
        ValueError: a stop string could never be found.
    """
    temperature = options.temperature if temperature is None else temperature
    cut = {"top_k": options.top_k, "top_p": options.top_p, "min_p": options.min_p}
    ids, texts = (), ()
    if tokenizer is not None:
        control = tokenizer.control_tokens
        ids, texts = split_stops(options.stop_strings, control, what="rollout.stop_strings")
        if environment is not None:
            more = split_stops(
                tuple(environment.stop_strings), control, what="rollout.environment: stop_strings"
            )
            ids, texts = (*ids, *more[0]), (*texts, *more[1])
        ids = (*tokenizer.stop_ids, *ids)
    return Sampling(
        temperature=temperature,
        **(cut if temperature else {}),
        max_tokens=options.max_completion_length,
        group_size=options.group_size if group_size is None else group_size,
        stop_ids=tuple(dict.fromkeys(ids)),
        stop_strings=tuple(dict.fromkeys(texts)),
        logit_bias=dict(options.logit_bias),
        forbidden_ids=tuple(options.forbidden_ids),
        repetition_penalty=options.repetition_penalty,
    )


def check_draws(
    options: RolloutConfig, *, tokenizer: Tokenizer, environment: Environment | None, vocab_size: int
) -> None:
    """Raises unless completions can be drawn and ended as the options say, by a model of `vocab_size` tokens.

    Raises:
        ValueError: names the field, what came and what was expected.
    """
    sampling_of(options, tokenizer=tokenizer, environment=environment)
    named = {"logit_bias": options.logit_bias, "forbidden_ids": options.forbidden_ids}
    for name, ids in named.items():
        beyond = [id for id in ids if id >= vocab_size]
        if beyond:
            raise ValueError(
                f"rollout.{name}: got token {beyond[0]}, expected ids below the model's vocabulary of {vocab_size}"
            )
    left = set(range(vocab_size)) - set(options.forbidden_ids)
    if all(options.logit_bias.get(id) == -float("inf") for id in left):
        raise ValueError(
            f"rollout.forbidden_ids: got the whole vocabulary of {vocab_size} tokens, expected one left to draw"
        )
