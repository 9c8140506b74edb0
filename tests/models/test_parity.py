"""Logits and gradients against Transformers in PyTorch, for every family and switch; 300 tokens, float32."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from grpo_jax.models import attention, families, loading
from grpo_jax.models.decoder import Decoder
from grpo_jax.models.names import slots
from tests.models.torch_models import CONFIGS, build, save

torch = pytest.importorskip("torch")

P, T = 180, 120
PROMPTS, COMPLETIONS = np.array([180, 97]), np.array([120, 33])
"""Row 0 fills all 300 columns; row 1 is padded in both halves."""


@pytest.fixture(scope="module", params=CONFIGS)
def pair(request, tmp_path_factory):
    """A PyTorch model and the decoder loaded from what it saved, in several shards."""
    folder = tmp_path_factory.mktemp(request.param)
    model = save(request.param, folder, shard_size="10KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    return model, load(folder)


def load(folder) -> Decoder:
    """Without remat, which halves the compilation and is compared with no remat in test_decoder."""
    config = dataclasses.replace(loading.read_config(str(folder)), remat="none")
    return loading.load_decoder(str(folder), config=config)


def draws(vocab_size: int):
    rng = np.random.default_rng(0)
    ids = rng.integers(0, vocab_size, (2, P + T))
    return ids, rng.normal(size=(2, P + T, vocab_size))


def columns(row: int) -> np.ndarray:
    return np.r_[: PROMPTS[row], P : P + COMPLETIONS[row]]


def torch_run(model, ids, direction):
    """Logits of each row without padding, and the gradient of a random projection of their log-softmax."""
    model.zero_grad()
    logits = []
    for row in range(2):
        out = model(input_ids=torch.from_numpy(ids[row, columns(row)][None])).logits[0]
        out.log_softmax(-1).mul(torch.from_numpy(direction[row, columns(row)])).sum().div(100).backward()
        logits.append(out.detach().numpy())
    return logits, {name: p.grad.numpy() for name, p in model.named_parameters()}


def jax_run(decoder, ids, positions, attend, direction):
    """The same in one padded or packed batch; `direction` is zero where there is nothing to predict."""
    structure, params = nnx.split(decoder)

    @jax.jit
    def both(params):
        def loss(params):
            model = nnx.merge(structure, params)
            logits = model.logits(model(ids, positions, attend)[0])
            return (jax.nn.log_softmax(logits) * direction).sum() / 100, logits

        return jax.grad(loss, has_aux=True)(params)

    gradients, logits = both(params)
    return logits, {".".join(path): np.asarray(v[...]) for path, v in nnx.to_flat_state(gradients)}


def assert_same_gradients(ours, theirs, config):
    for parameter, gradient in ours.items():
        for slot in slots(parameter, config):
            mine = gradient if slot.layer is None else gradient[slot.layer]
            np.testing.assert_allclose(
                mine.T if slot.transposed else mine, theirs[slot.name], atol=2e-4, rtol=0, err_msg=slot.name
            )


def test_padded_rows_match_transformers(pair):
    model, decoder = pair
    ids, direction = draws(decoder.config.vocab_size)
    expected, expected_gradients = torch_run(model, ids, direction)
    masked = np.zeros_like(direction)
    for row in range(2):
        masked[row, columns(row)] = direction[row, columns(row)]
    prompts, completions = jnp.asarray(PROMPTS), jnp.asarray(COMPLETIONS)
    logits, gradients = jax_run(
        decoder,
        jnp.asarray(ids),
        attention.plain_positions(prompts, P, T),
        attention.plain(prompts, completions, P, T),
        jnp.float32(masked),
    )
    for row in range(2):
        np.testing.assert_allclose(logits[row, columns(row)], expected[row], atol=2e-4, rtol=0)
    assert_same_gradients(gradients, expected_gradients, decoder.config)


@pytest.mark.parametrize("name", ["llama3.1", "qwen2-window", "qwen3"])
def test_packed_rows_match_transformers(name, tmp_path):
    """Both sequences in one row of 460 columns, the rest of it padding."""
    model = save(name, tmp_path)
    decoder = load(tmp_path)
    ids, direction = draws(decoder.config.vocab_size)
    expected, expected_gradients = torch_run(model, ids, direction)
    lengths = PROMPTS + COMPLETIONS
    empty = 460 - lengths.sum()
    packed_ids = np.concatenate([ids[0, columns(0)], ids[1, columns(1)], np.zeros(empty, int)])
    packed_direction = np.concatenate(
        [direction[0, columns(0)], direction[1, columns(1)], np.zeros((empty, direction.shape[-1]))]
    )
    segments = jnp.asarray(np.repeat([0, 1, -1], [*lengths, empty]))[None]
    positions = jnp.asarray(np.concatenate([np.arange(n) for n in (*lengths, empty)]))[None]
    logits, gradients = jax_run(
        decoder,
        jnp.asarray(packed_ids)[None],
        positions,
        attention.packed(segments, positions),
        jnp.float32(packed_direction)[None],
    )
    np.testing.assert_allclose(logits[0, : lengths[0]], expected[0], atol=2e-4, rtol=0)
    np.testing.assert_allclose(logits[0, lengths[0] : lengths.sum()], expected[1], atol=2e-4, rtol=0)
    assert_same_gradients(gradients, expected_gradients, decoder.config)


@pytest.mark.parametrize("name", CONFIGS)
def test_config_survives_the_way_out_and_back(name):
    config = families.from_transformers(build(name).config.to_dict())
    assert families.from_transformers(json.loads(json.dumps(families.to_transformers(config)))) == config
    assert Decoder(config, rngs=nnx.Rngs(0)).config == config
