"""GGUF files written here: weights come back whatever their quantisation, tokenizers from their fields."""

import numpy as np
import pytest
from flax import nnx

from grpo_jax.models import exporting, families, loading
from grpo_jax.models.decoder import Decoder
from grpo_jax.models.names import slots
from grpo_jax.models.tokenizers import CharacterTokenizer, load_tokenizer
from tests.models import tiny_tokenizers

gguf_library = pytest.importorskip("gguf")

LLAMA = dict(
    model_type="llama",
    vocab_size=270,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    tie_word_embeddings=True,
    rms_norm_eps=1e-5,
)
QWEN3 = LLAMA | dict(model_type="qwen3", head_dim=16, tie_word_embeddings=False)
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.": "blk.",
}


def permute(weight, heads):
    """llama.cpp's convert_hf_to_gguf, for Llama's queries and keys."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def write(path, fields, *, quantised=False, pre="smollm", extra=()):
    """A random decoder as a GGUF file; returns the decoder."""
    decoder = Decoder(families.from_transformers(fields), rngs=nnx.Rngs(0))
    family = fields["model_type"]
    writer = gguf_library.GGUFWriter(path, family)
    writer.add_block_count(fields["num_hidden_layers"])
    writer.add_context_length(fields["max_position_embeddings"])
    writer.add_embedding_length(fields["hidden_size"])
    writer.add_feed_forward_length(fields["intermediate_size"])
    writer.add_head_count(fields["num_attention_heads"])
    writer.add_head_count_kv(fields["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(fields["rms_norm_eps"])
    if "head_dim" in fields:
        writer.add_key_length(fields["head_dim"])
        writer.add_value_length(fields["head_dim"])
    for name, value in extra:
        writer.add_uint32(name, value)
    write_tokenizer(writer, pre)
    for path_, variable in nnx.to_flat_state(nnx.state(decoder)):
        for slot in slots(".".join(path_), decoder.config):
            array = exporting._tensor(slot, variable[...])
            heads = fields["num_attention_heads"] if "q_proj" in slot.name else fields["num_key_value_heads"]
            if family == "llama" and ("q_proj" in slot.name or "k_proj" in slot.name):
                array = permute(array, heads)
            name = slot.name
            for ours, theirs in NAMES.items():
                name = name.replace(ours, theirs)
            kind = gguf_library.GGMLQuantizationType.Q8_0
            if quantised and array.ndim == 2:
                writer.add_tensor(name, gguf_library.quantize(array, kind), raw_dtype=kind)
            else:
                writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return decoder


def write_tokenizer(writer, pre):
    tokenizer = tiny_tokenizers.build(template=tiny_tokenizers.QWEN_STYLE)
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in tiny_tokenizers.CONTROL else 1 for token in tokens])
    writer.add_token_merges(["h e", "l l", "he ll", "hell o"])
    writer.add_bos_token_id(tiny_tokenizers.BOS)
    writer.add_eos_token_id(tiny_tokenizers.IM_END)
    writer.add_pad_token_id(tiny_tokenizers.IM_END)
    writer.add_chat_template(tiny_tokenizers.QWEN_STYLE)


def parameters(decoder):
    return {".".join(path): np.asarray(v[...]) for path, v in nnx.to_flat_state(nnx.state(decoder))}


@pytest.mark.parametrize("fields", [LLAMA, QWEN3], ids=["llama", "qwen3"])
def test_float32_weights_come_back_bit_for_bit(fields, tmp_path, monkeypatch):
    """In pieces of a few rows, so that rows of permuted and plain tensors are cut in the right place."""
    monkeypatch.setattr(loading, "PIECE_BYTES", 1000)
    decoder = write(tmp_path / "model.gguf", fields)
    loaded = loading.load_decoder(str(tmp_path / "model.gguf"))
    assert loaded.config == decoder.config
    for name, array in parameters(loaded).items():
        np.testing.assert_array_equal(array, parameters(decoder)[name], err_msg=name)


def test_quantised_weights_come_back_within_their_step(tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "PIECE_BYTES", 1000)
    decoder = write(tmp_path / "model.gguf", LLAMA, quantised=True)
    loaded = parameters(loading.load_decoder(str(tmp_path / "model.gguf")))
    for name, array in parameters(decoder).items():
        step = np.abs(array).max() / 127
        assert np.abs(loaded[name] - array).max() <= step, name
        assert name.endswith("norm") or np.abs(loaded[name] - array).max() > 0, name


def test_the_tokenizer_is_that_of_the_fields(tmp_path):
    write(tmp_path / "model.gguf", LLAMA)
    tokenizer = load_tokenizer(kind="transformers", path=str(tmp_path / "model.gguf"), chat=True)
    assert tokenizer.stop_ids == (tiny_tokenizers.IM_END,) and tokenizer.pad_id == tiny_tokenizers.IM_END
    assert tokenizer.tokenizer.decode(tokenizer.encode_prompt("hello 12")) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nhello 12<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.encode_completion("hello")[0] == 7 + 256 + 3


@pytest.mark.parametrize(
    "pre, words",
    [
        ("gpt-2", ["ab", "Ġ", "Ġ1234", "!"]),
        ("smollm", ["ab", "ĠĠ", "1", "2", "3", "4", "!"]),
        ("qwen2", ["ab", "Ġ", "Ġ", "1", "2", "3", "4", "!"]),
        ("llama-bpe", ["ab", "Ġ", "Ġ", "123", "4", "!"]),
    ],
)
def test_each_pre_tokenizer_cuts_text_its_own_way(pre, words, tmp_path):
    write(tmp_path / "model.gguf", LLAMA, pre=pre)
    tokenizer = load_tokenizer(kind="transformers", path=str(tmp_path / "model.gguf")).tokenizer
    cut = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("ab  1234!")
    assert [word for word, _ in cut] == words


def test_what_is_not_supported_is_named(tmp_path):
    write(tmp_path / "a.gguf", LLAMA, extra=[("llama.expert_count", 8)])
    with pytest.raises(ValueError, match=r"llama\.expert_count"):
        loading.read_config(str(tmp_path / "a.gguf"))
    write(tmp_path / "b.gguf", LLAMA, extra=[("llama.rope.dimension_count", 4)])
    with pytest.raises(ValueError, match=r"llama\.rope\.dimension_count 4; expected 8"):
        loading.read_config(str(tmp_path / "b.gguf"))
    write(tmp_path / "c.gguf", LLAMA, pre="tekken")
    with pytest.raises(ValueError, match=r"tokenizer\.ggml\.pre is 'tekken'"):
        load_tokenizer(kind="transformers", path=str(tmp_path / "c.gguf"))
    with pytest.raises(ValueError, match=r"d\.gguf does not exist"):
        loading.read_config(str(tmp_path / "d.gguf"))


def test_a_cut_file_is_named(tmp_path):
    write(tmp_path / "model.gguf", LLAMA)
    whole = (tmp_path / "model.gguf").read_bytes()
    (tmp_path / "model.gguf").write_bytes(whole[:-4000])
    with pytest.raises(ValueError, match=r"model\.gguf is not a whole GGUF file"):
        loading.load_decoder(str(tmp_path / "model.gguf"))


def test_a_gguf_model_exports_like_any_other(tmp_path):
    decoder = write(tmp_path / "model.gguf", LLAMA)
    loaded = loading.load_decoder(str(tmp_path / "model.gguf"))
    exporting.export_model(tmp_path / "out", loaded, CharacterTokenizer())
    again = loading.load_decoder(str(tmp_path / "out"))
    for name, array in parameters(decoder).items():
        np.testing.assert_array_equal(parameters(again)[name], array, err_msg=name)
