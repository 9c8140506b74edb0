"""Which model it is, and how it is asked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.evaluation.subject import ask, checksum, open_subject
from grpo_jax.models.tokenizers import CharacterTokenizer, TransformersTokenizer
from tests.evaluation.models import write_model, write_run
from tests.models.tiny_tokenizers import LLAMA_STYLE, build


def test_names_and_folders(tmp_path):
    run = write_run(tmp_path / "run")
    newest, first = open_subject(run), open_subject(run, step=0)
    assert newest.name == f"{run}, step 1" and newest.folder == run / "evaluations/step-1"
    assert first.folder == run / "evaluations/step-0"
    assert checksum(newest.opened.params) != checksum(first.opened.params)
    model = open_subject(write_model(tmp_path / "llama"))
    assert model.name == str(tmp_path / "llama") and str(model.folder) == "evaluations/llama"


def test_the_checksum_is_of_every_bit():
    params = {"a": jnp.arange(6, dtype=jnp.float32).reshape(2, 3), "b": jnp.ones(5, jnp.bfloat16)}
    expected = checksum(params)
    assert checksum(jax.tree.map(jnp.copy, params)) == expected and len(expected) == 8
    flipped = np.asarray(params["a"]).copy()
    flipped.view(np.uint32)[1, 2] ^= 1
    assert checksum(params | {"a": jnp.asarray(flipped)}) != expected
    assert checksum(params | {"b": params["b"].at[4].set(1.0078125)}) != expected


def test_chat_is_what_the_tokenizer_can_unless_said():
    plain, template = TransformersTokenizer(build()), TransformersTokenizer(build(template=LLAMA_STYLE))
    assert ask(plain, False) is plain
    chat = ask(template, True)
    assert chat.chat and len(chat.encode_prompt("hello")) > len(template.encode_prompt("hello"))
    assert ask(chat, False).encode_prompt("hello") == template.encode_prompt("hello")
    assert set(ask(chat, False).stop_ids) == set(chat.stop_ids)
    with pytest.raises(ValueError, match="no chat template"):
        ask(plain, True)
    with pytest.raises(ValueError, match="no chat template"):
        ask(CharacterTokenizer(), True)
