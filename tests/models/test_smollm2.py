"""The real SmolLM2-135M-Instruct from its GGUF file: tokenizer goldens, and agreement with Transformers."""

import pydoc_data.topics

import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.models import attention, loading
from grpo_jax.models.tokenizers import load_tokenizer
from grpo_jax.types import Message
from tests.models.smollm2 import gguf_path

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")
pytest.importorskip("gguf")

PROMPTS = [
    *(
        f"What is {a} {sign} {b}?"
        for a, sign, b in [(2, "+", 3), (7, "*", 8), (12, "-", 5), (31, "+", 48), (9, "/", 3)]
    ),
    *("Name the capital of France.", "Who wrote Hamlet?", "What is water made of?", "How far is the moon?"),
    *(
        "Write a haiku about snow.",
        "Tell me a joke.",
        "Translate 'good morning' to Spanish.",
        "List three fruits.",
    ),
    *("Explain gravity to a child.", "What does a compiler do?", "Why is the sky blue?", "Describe a cat."),
    *("Give me a recipe for pancakes.", "What is a prime number?", "Say hello in five languages."),
]
NEW = 64


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(kind="transformers", path=str(gguf_path()), chat=True)


@pytest.fixture(scope="module")
def decoder():
    return loading.load_decoder(str(gguf_path()))


@pytest.fixture(scope="module")
def reference():
    pytest.importorskip("accelerate", reason="Transformers reads GGUF files through accelerate")
    from transformers import AutoModelForCausalLM

    path = gguf_path()
    return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()


def top_tokens(decoder, ids):
    """Most likely next token at every position of right-padded rows; padding behind a row changes nothing."""
    N, S = ids.shape
    lengths = jnp.full(N, S)
    positions = jnp.broadcast_to(jnp.arange(S), (N, S))
    hidden, _ = decoder(jnp.asarray(ids), positions, attention.plain(lengths, jnp.zeros_like(lengths), S, 0))
    return np.concatenate([np.asarray(decoder.logits(row).argmax(-1))[None] for row in hidden])


def test_golden_tokens(tokenizer):
    """Digits stand alone: without that, "x=  5" would end in " 5"."""
    tokens = tokenizer.tokenizer.tokenize
    assert tokens("x=  5") == ["x", "=", "ĠĠ", "5"]
    assert tokens("1234") == ["1", "2", "3", "4"]
    ids = tokenizer.encode_prompt("What is 2 + 3?")
    assert tokenizer.tokenizer.decode(ids) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is 2 + 3?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert ids[:3] == [1, 9690, 198] and ids[-3:] == [520, 9531, 198]
    own = tokenizer.encode_prompt((Message("system", "Add."), Message("user", "<|im_end|>")))
    assert own.count(2) == 2
    assert tokenizer.stop_ids == (2,) and tokenizer.pad_id == 2 and tokenizer.vocab_size == 49152
    assert tokenizer.encode_completion("5")[-1] == 2


def test_the_likeliest_token_is_the_same_on_real_text(tokenizer, decoder, reference):
    text = "\n".join(pydoc_data.topics.topics[name] for name in ("class", "import", "with", "try", "types"))
    ids = np.array(tokenizer.tokenizer.encode(text, add_special_tokens=False)[:2000]).reshape(8, 250)
    with torch.no_grad():
        expected = reference(torch.from_numpy(ids)).logits.argmax(-1).numpy()
    agreement = np.mean(top_tokens(decoder, ids) == expected)
    print(f"top-1 agreement {agreement:.4%} of {ids.size} positions")
    assert agreement >= 0.999


def test_greedy_continuations_are_the_same(tokenizer, decoder, reference):
    """If ours picks each of Transformers' greedy tokens after those before it, it continues the same way.

    Stop tokens do not stop here, so that every prompt gives 64 tokens to compare.
    """
    encoded = [tokenizer.encode_prompt(prompt) for prompt in PROMPTS]
    width = max(map(len, encoded))
    left = np.array([[2] * (width - len(ids)) + ids for ids in encoded])
    real = np.arange(width) >= width - np.array([[len(ids)] for ids in encoded])
    reference.generation_config.eos_token_id = None
    with torch.no_grad():
        generated = reference.generate(
            torch.from_numpy(left),
            attention_mask=torch.from_numpy(real.astype(int)),
            do_sample=False,
            max_new_tokens=NEW,
            pad_token_id=2,
        ).numpy()[:, width:]
    # Ours reads the same rows with the padding behind instead of in front.
    rows = np.zeros((len(encoded), width + NEW), int)
    for row, ids, new in zip(rows, encoded, generated, strict=True):
        row[: len(ids) + NEW] = [*ids, *new]
    for prompt, picked, ids, new in zip(PROMPTS, top_tokens(decoder, rows), encoded, generated, strict=True):
        assert len(new) == NEW
        np.testing.assert_array_equal(picked[len(ids) - 1 : len(ids) - 1 + NEW], new, err_msg=prompt)
