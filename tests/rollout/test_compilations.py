"""A run compiles a handful of programs, whatever its lengths are: as many as its buckets allow, and each once."""

from collections import Counter
from dataclasses import replace

import jax
import numpy as np

from grpo_jax.rollout import NativeEngine, Sampling, buckets, decode
from tests.rollout.tiny import CONFIG, model

PROGRAMS = ("prefill", "admit", "decode", "shrink", "widen")
B, G, P, T, SLOTS = 20, 3, 20, 80, 32


def compiled() -> Counter:
    return Counter({name: getattr(decode, name)._cache_size() for name in PROGRAMS})


def bucketed(sizes: buckets.Sizes) -> dict[str, int]:
    """The most programs of each kind that these sizes allow for calls of B prompts, G completions and T tokens."""
    widths = {sizes.prompt_tokens_for(length) for length in range(1, P + 1)}
    columns = {sizes.columns_for(tokens, T - 1) for tokens in range(1, T)}
    first = sizes.slots_for(B * G)
    slots = {first} | {sizes.fewer_slots(first, left) for left in range(1, first + 1)}
    reads = {sizes.prefill_for(prompts, width) for prompts in range(1, B + 1) for width in widths}
    arrivals = {sizes.arrivals_for(count, first) for count in range(1, first + 1)}
    caches = len(widths) * len(columns)
    growths = len(columns) * (len(columns) - 1) // 2
    return {
        "prefill": caches * len(widths) * len(reads),
        "admit": caches * len(arrivals),
        "decode": caches * len(slots),
        "shrink": caches * (len(slots) - 1),
        "widen": len(widths) * growths * len(slots),
    }


def test_fifty_steps_of_ragged_lengths_compile_no_more_than_the_buckets(record_property):
    # A vocabulary of its own, so that no other test has compiled for these shapes.
    graphdef, params = model(replace(CONFIG, vocab_size=31, max_position=P + T))
    engine = NativeEngine(graphdef, max_prompt_length=P, slots=SLOTS, chunk=16)
    engine.load(params)
    generator = np.random.default_rng(0)
    before, news = compiled(), []
    for step in range(50):
        # Both have a long tail; now and then no prompt or no completion is long.
        prompts = np.minimum(np.ceil(np.exp(generator.normal(1.4, 0.6, B))), P).astype(int)
        limits = np.minimum(np.ceil(np.exp(generator.normal(2.5, 1.0, (B, G)))), T).astype(int)
        rollout = engine.generate(
            [[1] * length for length in prompts],
            sampling=Sampling(max_tokens=T, group_size=G),
            key=jax.random.fold_in(jax.random.key(0), step),
            max_tokens=limits,
        )
        np.testing.assert_array_equal(rollout.completion_lengths, limits.ravel())
        news.append((compiled() - before).total())
    found, noted = compiled() - before, Counter(program for program, _ in engine.programs)
    allowed = bucketed(buckets.Sizes(P, SLOTS, 16, False))
    print(
        f"compiled {dict(found)}, needed {dict(noted)}, buckets {allowed}; after step 10: {news[9]} of {news[-1]}"
    )
    record_property("compilations", found.total())
    assert sum(allowed.values()) == 58  # two widths of prompts, two of caches; 32, 16 and 8 slots, …
    for name in PROGRAMS:
        assert 0 < found[name] <= noted[name] <= allowed[name], name
