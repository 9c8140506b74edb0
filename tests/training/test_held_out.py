"""Held-out accuracy in a run: how the policy gets into the sampler."""

from grpo_jax.training import held_out, setup
from grpo_jax.training.journal import Journal
from tests.tiny import tiny


def test_the_policy_is_loaded_once_for_all_parts_of_an_evaluation(tmp_path, monkeypatch):
    """Eight problems are sampled in two parts of four; loading may reshard and quantise the whole model."""
    run = setup.prepare(tiny(tmp_path / "run"))
    state, engine = setup.initial_state(run), run.sampler.engine
    loaded, parts = [], []
    load, generate = engine.load, engine.generate
    monkeypatch.setattr(engine, "load", lambda params: loaded.append(params) or load(params))
    monkeypatch.setattr(engine, "generate", lambda ids, **k: parts.append(len(ids)) or generate(ids, **k))
    with Journal(run.folder, resumed=None) as journal:
        result = held_out.evaluate(run, state, journal)
    run.checkpoints.close()
    run.sampler.close()
    assert parts == [4, 4] and [params is None for params in loaded] == [False, True]
    assert len(result.completions) == 16
