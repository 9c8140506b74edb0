"""A checkpoint of a run as a folder that Transformers or PEFT loads, with a card that says where it comes from."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flax import nnx

from grpo_jax import experiment
from grpo_jax.config import Config, PretrainedModel
from grpo_jax.models import exporting
from grpo_jax.training.opening import open_model
from grpo_jax.training.records import read_rows


def export_run(folder: Path, to: Path, *, step: int | None = None, adapter: bool = False) -> int:
    """Writes the policy of the run in `folder` after `step` rollouts (default: its newest) to a new folder.

    Args:
        folder: the run.
        to: a new or empty folder.
        step: rollouts, as metrics.jsonl counts them; a checkpoint of that step must still be there.
        adapter: write LoRA's adapters alone, as PEFT reads them, in place of a model they are merged into.

    Returns:
        The step that was written.

    Raises:
        ValueError: there is no run, no such checkpoint, or nothing to write an adapter of; names it.
    """
    if not (folder / "config.py").exists():
        raise ValueError(f"export: {folder} holds no run (no config.py in it)")
    base = adapter_base(experiment.load(folder / "config.py")) if adapter else None
    opened = open_model(folder, step=step)
    config, step, tokenizer = opened.config, opened.step, opened.tokenizer
    decoder = nnx.merge(opened.graphdef, opened.params)
    if base is not None:
        exporting.export_adapter(to, decoder, base=base)
        exporting.export_tokenizer(to, tokenizer, temperature=config.rollout.temperature)
    else:
        exporting.export_model(to, decoder, tokenizer, temperature=config.rollout.temperature)
    (to / "README.md").write_text(card(config, folder, step), encoding="utf-8")
    return step


def adapter_base(config: Config) -> str:
    """What the adapters belong on, as PEFT looks for it."""
    if not isinstance(config.model, PretrainedModel) or not config.model.lora_rank:
        raise ValueError(
            "export: --adapter needs a run of a pretrained model with model.lora_rank > 0; export it without"
        )
    return config.model.path.partition("@")[0]


def card(config: Config, folder: Path, step: int) -> str:
    """README.md: where the model comes from, what it reached on held-out problems, and the config that repeats it."""
    return exporting.model_card(
        title=f"{folder.resolve().name}, step {step}",
        base=base_name(config),
        resolved_config=(folder / "config.py").read_text(encoding="utf-8"),
        results=held_out_results(read_rows(folder / "metrics.jsonl"), step),
    )


def base_name(config: Config) -> str | None:
    """A hub id, or the name of a file or folder without the place on this machine."""
    if not isinstance(config.model, PretrainedModel):
        return None
    path = config.model.path
    return path.partition("@")[0] if "@" in path else Path(path).name


def held_out_results(rows: Sequence[Mapping[str, Any]], step: int) -> list[dict[str, Any]]:
    """The first evaluation of the policy stage and the last one up to `step`."""
    evaluated = [row for row in rows if row["stage"] == "policy" and row.get("eval/accuracy") is not None]
    evaluated = [row for row in evaluated if row["step"] <= step]
    ends = [*evaluated[:1], *evaluated[1:][-1:]]
    return [
        {
            "step": row["step"],
            "accuracy": f"{row['eval/accuracy']:.1%}",
            "95 % interval": f"{row['eval/accuracy_low']:.1%} to {row['eval/accuracy_high']:.1%}",
            **{
                name.removeprefix("eval/"): f"{value:.1%}"
                for name, value in row.items()
                if name.startswith("eval/pass@") and name != "eval/pass@1"
            },
        }
        for row in ends
    ]
