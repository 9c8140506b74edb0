"""Checkpoints that are whole load onto any sharding and dtype; damaged ones name the tensor and the file."""

import json
import shutil
import tracemalloc

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from safetensors.numpy import load_file, save_file

from grpo_jax.models import exporting, loading
from grpo_jax.models.checkpoint_files import INDEX
from grpo_jax.models.config import ModelConfig
from grpo_jax.models.decoder import Decoder
from grpo_jax.models.tokenizers import CharacterTokenizer

torch = pytest.importorskip("torch")

from tests.models.torch_models import save  # noqa: E402


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A tied Llama in one file."""
    folder = tmp_path_factory.mktemp("tied")
    save("smollm2", folder)
    return folder


@pytest.fixture
def copy(checkpoint, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(checkpoint, folder)
    return folder


def parameters(decoder):
    return {".".join(path): v[...] for path, v in nnx.to_flat_state(nnx.state(decoder))}


def rewrite(folder, change):
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def load(folder):
    return loading.load_decoder(str(folder))


def test_sharded_over_a_mesh_and_cast_it_holds_the_same_numbers(checkpoint, monkeypatch):
    """Pieces of a few rows on purpose: every offset within every shard is exercised."""
    monkeypatch.setattr(loading, "PIECE_BYTES", 300)
    mesh = jax.make_mesh((1, 3, 2), ("data", "fsdp", "tensor"), devices=jax.devices()[:6])

    def rule(name, shape):
        spec = {
            "blocks.query.kernel": (None, "fsdp", "tensor"),
            "blocks.key.kernel": ("fsdp", None, ("data", "tensor")),
            "embedding": (None, "fsdp"),
        }.get(name, ())
        return NamedSharding(mesh, PartitionSpec(*spec))

    config = loading.read_config(str(checkpoint), param_dtype="bfloat16")
    sharded = parameters(loading.load_decoder(str(checkpoint), config=config, sharding=rule))
    for name, array in parameters(load(checkpoint)).items():
        assert sharded[name].sharding.is_equivalent_to(rule(name, array.shape), array.ndim), name
        assert sharded[name].dtype == "bfloat16", name
        np.testing.assert_array_equal(
            np.asarray(sharded[name]), np.asarray(array).astype("bfloat16"), err_msg=name
        )


def test_a_missing_tensor_is_named(copy):
    rewrite(copy, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(ValueError, match=r"model\.layers\.1\.mlp\.up_proj\.weight is missing from .*copy"):
        load(copy)


def test_an_extra_tensor_is_named(copy):
    rewrite(
        copy,
        lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": np.zeros(54, "float32")}),
    )
    with pytest.raises(ValueError, match=r"q_proj\.bias in .*model\.safetensors belongs to no parameter"):
        load(copy)


def test_a_misshapen_tensor_is_named(copy):
    rewrite(copy, lambda tensors: tensors.update({"model.norm.weight": np.zeros(28, "float32")}))
    with pytest.raises(
        ValueError, match=r"model\.norm\.weight in .*model\.safetensors has shape \[28\]; expected \[27\]"
    ):
        load(copy)


def test_a_truncated_tensor_is_named(copy):
    file = copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"tensor model\.norm\.weight in .*model\.safetensors is truncated"):
        load(copy)
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(
        ValueError, match=r"model\.safetensors is not a safetensors file, or its header is cut"
    ):
        load(copy)


def test_a_shard_that_is_not_there_is_named(tmp_path):
    save("qwen2.5", tmp_path, shard_size="10KB")
    index = json.loads((tmp_path / INDEX).read_text())["weight_map"]
    (tmp_path / index["model.norm.weight"]).unlink()
    with pytest.raises(ValueError, match=index["model.norm.weight"] + " does not exist"):
        load(tmp_path)


def test_a_head_stored_twice_loads_if_it_is_the_embedding(copy):
    rewrite(
        copy, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].copy()})
    )
    assert load(copy).head is None
    rewrite(copy, lambda tensors: tensors.update({"lm_head.weight": tensors["lm_head.weight"] + 1}))
    with pytest.raises(ValueError, match=r"lm_head\.weight in .* belongs to no parameter"):
        load(copy)


def test_pickles_are_refused(copy):
    (copy / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="holds no safetensors file"):
        load(copy)
    (copy / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin but no safetensors; pickle files can run code"):
        load(copy)


def test_a_folder_without_a_config_says_so(tmp_path):
    with pytest.raises(ValueError, match=r"config\.json does not exist"):
        load(tmp_path)


def test_the_host_holds_one_piece_at_a_time(tmp_path, monkeypatch):
    """numpy's allocations while a 4 MB tensor is read in pieces of 64 KB; jax's own are the model itself."""
    monkeypatch.setattr(loading, "PIECE_BYTES", 2**16)
    config = ModelConfig(
        vocab_size=2**14, num_layers=1, width=64, mlp_width=8, num_heads=1, num_kv_heads=1, head_dim=2
    )
    exporting.export_model(tmp_path / "large", Decoder(config, rngs=nnx.Rngs(0)), CharacterTokenizer())
    loading.load_decoder(
        str(tmp_path / "large"), config=config
    )  # compiles, so that compiling is not measured
    tracemalloc.start()
    loading.load_decoder(str(tmp_path / "large"), config=config)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20
