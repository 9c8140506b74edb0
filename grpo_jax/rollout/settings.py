"""What to sample: plain data that checks itself."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

SMALLEST, LARGEST = 1e-6, 1e6
"""Bounds of what logits are divided by, or moved by: beyond them float32 overflows, and all log-probs are NaN."""


@dataclass(frozen=True)
class Sampling:
    """How completions are drawn. A wrong value is an error here, before anything is compiled."""

    temperature: float = 1.0
    """0 takes the likeliest token."""
    top_k: int = 0
    """Sample among the k likeliest tokens; 0 is off."""
    top_p: float = 1.0
    """Sample within this probability mass; 1 is off."""
    min_p: float = 0.0
    """Sample among tokens at least this likely, relative to the likeliest; 0 is off."""
    max_tokens: int = 64
    """Longest completion, tokens, stop token included."""
    group_size: int = 1
    """Completions per prompt (G)."""
    stop_ids: tuple[int, ...] = ()
    """Tokens that end a completion, each being its last token."""
    stop_strings: tuple[str, ...] = ()
    """Texts that end a completion, with the token that completes one, wherever its token boundaries lie."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of single tokens before anything else; −inf forbids one."""
    forbidden_ids: tuple[int, ...] = ()
    """Tokens never drawn."""
    repetition_penalty: float = 1.0
    """Positive logits of tokens seen in prompt or completion are divided by this, negative ones
    multiplied.
    """

    def __post_init__(self):
        fits = self.temperature == 0 or SMALLEST <= self.temperature < math.inf
        _require(fits, "temperature", self.temperature, f"0, or a finite number from {SMALLEST:g} up")
        _require(self.top_k >= 0, "top_k", self.top_k, "a whole number ≥ 0 (0 is off)")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "a number in (0, 1] (1 is off)")
        _require(0 <= self.min_p <= 1, "min_p", self.min_p, "a number in [0, 1] (0 is off)")
        _require(self.max_tokens >= 1, "max_tokens", self.max_tokens, "a whole number ≥ 1")
        _require(self.group_size >= 1, "group_size", self.group_size, "a whole number ≥ 1")
        _require(all(i >= 0 for i in self.stop_ids), "stop_ids", self.stop_ids, "token ids ≥ 0")
        texts = self.stop_strings
        # A text alone would be taken for its letters.
        several = not isinstance(texts, str) and all(isinstance(text, str) and text for text in texts)
        _require(several, "stop_strings", texts, "a tuple of texts that are not empty")
        _require(
            all(value <= LARGEST for value in self.logit_bias.values()),
            "logit_bias",
            self.logit_bias,
            f"numbers of at most {LARGEST:g}",
        )
        both = sorted(set(self.logit_bias) & set(self.forbidden_ids))
        _require(not both, "logit_bias", dict(self.logit_bias), f"no token of forbidden_ids, {both}")
        penalty = self.repetition_penalty
        fits = SMALLEST <= penalty <= LARGEST
        _require(fits, "repetition_penalty", penalty, f"a number from {SMALLEST:g} to {LARGEST:g}")
        if self.temperature == 0 and self.truncated:
            raise ValueError(
                "sampling.temperature is 0, which takes the likeliest token; expected top_k 0, top_p 1 and"
                f" min_p 0 beside it, not {self.top_k}, {self.top_p}, {self.min_p}"
            )

    @property
    def truncated(self) -> bool:
        """Whether top-k, top-p or min-p cuts tokens off."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0


def _require(holds: bool, name: str, value: object, expected: str) -> None:
    if not holds:
        raise ValueError(f"sampling.{name} is {value!r}; expected {expected}")
