"""What we write, Transformers and PEFT load: same logits, same tokens, tied embeddings once."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

from grpo_jax.models import attention, exporting, families, loading, lora
from grpo_jax.models.config import LoraConfig
from grpo_jax.models.decoder import Decoder
from grpo_jax.models.tokenizers import CharacterTokenizer, TransformersTokenizer, load_tokenizer
from tests.models import tiny_tokenizers, torch_models

torch = pytest.importorskip("torch")

IDS = np.random.default_rng(0).integers(0, 67, (2, 40))


def logits(decoder: Decoder):
    lengths = jnp.full(2, 40)
    attend = attention.plain(lengths, jnp.zeros_like(lengths), 40, 0)
    positions = jnp.broadcast_to(jnp.arange(40), (2, 40))
    return decoder.logits(decoder(jnp.asarray(IDS), positions, attend)[0])


def transformers_logits(folder):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return model(torch.from_numpy(IDS)).logits.numpy()


def random_decoder(name: str) -> Decoder:
    """Norms and biases random too: ones and zeros would hide a swapped name."""
    config = families.from_transformers(torch_models.build(name).config.to_dict())
    structure, params = nnx.split(Decoder(config, rngs=nnx.Rngs(0)))
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    noisy = [x + 0.1 * jax.random.normal(key, x.shape) for x, key in zip(leaves, keys, strict=True)]
    return nnx.merge(structure, jax.tree.unflatten(tree, noisy))


@pytest.mark.parametrize("name", torch_models.CONFIGS)
def test_transformers_computes_the_same_logits(name, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "SHARD_BYTES", 12_000)
    decoder = random_decoder(name)
    folder = tmp_path / "out"
    exporting.export_model(folder, decoder, CharacterTokenizer())
    assert len(list(folder.glob("*.safetensors"))) > 1
    np.testing.assert_allclose(transformers_logits(folder), logits(decoder), atol=2e-4, rtol=0)


def test_export_and_load_gives_every_bit_back(tmp_path):
    """So training that continues from an export is training that never stopped."""
    decoder = random_decoder("qwen3-yarn-window-bias")
    exporting.export_model(tmp_path / "out", decoder, CharacterTokenizer())
    again = loading.load_decoder(str(tmp_path / "out"))
    assert again.config == decoder.config
    structures = nnx.split(decoder)[0], nnx.split(again)[0]
    assert structures[0] == structures[1]
    jax.tree.map(np.testing.assert_array_equal, nnx.state(decoder), nnx.state(again))


def test_tied_embeddings_are_stored_once_and_bfloat16_stays(tmp_path):
    import dataclasses

    config = dataclasses.replace(random_decoder("smollm2").config, param_dtype="bfloat16")
    exporting.export_model(tmp_path / "out", Decoder(config, rngs=nnx.Rngs(0)), CharacterTokenizer())
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert "lm_head.weight" not in tensors and "model.embed_tokens.weight" in tensors
    assert {tensor.dtype.name for tensor in tensors.values()} == {"bfloat16"}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.fixture(scope="module")
def adapted():
    base = random_decoder("qwen2.5")
    lora_config = LoraConfig(rank=2, alpha=8.0, targets=("query", "out", "gate"))
    structure, adapters, frozen = lora.split(lora.attach(base, lora_config, rngs=nnx.Rngs(1)))
    adapters = jax.tree.map(lambda x: x + 0.2 * jax.random.normal(jax.random.key(x.size), x.shape), adapters)
    return base, nnx.merge(structure, adapters, frozen)


def test_adapters_are_merged_into_an_exported_model(adapted, tmp_path):
    base, decoder = adapted
    exporting.export_model(tmp_path / "out", decoder, CharacterTokenizer())
    np.testing.assert_allclose(transformers_logits(tmp_path / "out"), logits(decoder), atol=2e-4, rtol=0)
    assert np.abs(logits(decoder) - logits(base)).max() > 0.05


def test_peft_loads_exported_adapters(adapted, tmp_path):
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    base, decoder = adapted
    exporting.export_model(tmp_path / "base", base, CharacterTokenizer())
    exporting.export_adapter(tmp_path / "adapter", decoder, base=str(tmp_path / "base"))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(model, tmp_path / "adapter")
    with torch.no_grad():
        theirs = model(torch.from_numpy(IDS)).logits.numpy()
    np.testing.assert_allclose(theirs, logits(decoder), atol=2e-4, rtol=0)


def test_adapter_files_hold_b_a_as_peft_names_them(adapted, tmp_path):
    """The product is checked here without PEFT: W of the merged model is W of the base + scale · B A."""
    base, decoder = adapted
    exporting.export_adapter(tmp_path / "adapter", decoder, base="org/base")
    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    fields = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert fields["target_modules"] == ["gate_proj", "o_proj", "q_proj"]
    assert fields["base_model_name_or_path"] == "org/base"
    assert len(tensors) == 3 * 3 * 2
    prefix = "base_model.model.model.layers.1.mlp.gate_proj."
    delta = (
        fields["lora_alpha"]
        / fields["r"]
        * tensors[prefix + "lora_B.weight"]
        @ tensors[prefix + "lora_A.weight"]
    )
    merged = lora.merge(decoder).blocks.gate.kernel[1].T
    np.testing.assert_allclose(base.blocks.gate.kernel[1].T + delta, merged, atol=1e-6)
    with pytest.raises(ValueError, match="no LoRA adapters"):
        exporting.export_adapter(tmp_path / "none", base, base="org/base")


def test_tokenizer_template_and_every_stop_id_come_back(tmp_path):
    tokenizer = TransformersTokenizer(
        tiny_tokenizers.build(template=tiny_tokenizers.QWEN_STYLE), chat=True, stop_ids=(40,)
    )
    exporting.export_model(tmp_path / "out", random_decoder("llama2"), tokenizer, temperature=0.7)
    again = load_tokenizer(kind="transformers", path=str(tmp_path / "out"), chat=True)
    assert again.encode_prompt("hello") == tokenizer.encode_prompt("hello")
    assert set(again.stop_ids) == set(tokenizer.stop_ids) and again.pad_id == tokenizer.pad_id
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert generation["temperature"] == 0.7 and set(generation["eos_token_id"]) == set(tokenizer.stop_ids)


def test_the_character_tokenizer_becomes_a_transformers_one(tmp_path):
    ours = CharacterTokenizer()
    exporting.export_tokenizer(tmp_path, ours, temperature=1.0)
    theirs = load_tokenizer(kind="transformers", path=str(tmp_path))
    for text in ("37+85=", "a\n b~", "Mary’s €5\t", ours.alphabet):
        assert theirs.encode_prompt(text) == ours.encode_prompt(text)
        assert theirs.encode_completion(text) == ours.encode_completion(text)
        assert theirs.decode(ours.encode_completion(text)) == text
    assert theirs.stop_ids == ours.stop_ids and theirs.pad_id == ours.pad_id


def test_an_export_never_overwrites(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="already holds something"):
        exporting.export_model(tmp_path, random_decoder("llama2"), CharacterTokenizer())


def test_the_card_holds_results_and_config():
    card = exporting.model_card(
        title="sums",
        base="org/base",
        resolved_config="seed: 0\n",
        results=[{"metric": "avg@4", "before": "51 % ± 3", "after": "80 % ± 2"}],
    )
    assert "base_model: org/base" in card and "```\nseed: 0\n```" in card
    assert "| metric | before | after |\n| --- | --- | --- |\n| avg@4 | 51 % ± 3 | 80 % ± 2 |" in card
    scratch = exporting.model_card(title="t", base=None, resolved_config="", results=[])
    assert "base_model" not in scratch and "from scratch" in scratch
