"""Where problems come from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Scalar = int | float | str | bool


@dataclass(frozen=True)
class ArithmeticData:
    """Sums, differences and products of whole numbers, made on the fly: "37+85=" with answer "122"."""

    operations: tuple[Literal["+", "-", "*"], ...] = ("+",)
    """Operators to draw from."""
    max_digits: int = 2
    """Largest number of digits of an operand."""
    carries: Literal["any", "required"] = "any"
    """Whether an addition must carry (a subtraction, borrow) in at least one column."""
    max_terms: int = 2
    """Largest number of operands of a sum, drawn uniformly from 2 up; differences and products have two."""
    prompt: str = "{question}="
    """Prompt template; {question} is the problem, as in 37+85."""
    system_prompt: str | None = None
    """System message; makes the prompt a chat."""
    few_shot: int = 0
    """Worked examples before every prompt: training problems, which are then not trained on."""
    few_shot_answer: str = "{answer}"
    """How an example is answered: a template over the problem's fields; {answer} is the reference answer."""
    size: int = 20_000
    """Problems to draw before duplicates are removed."""
    held_out_fraction: float = 0.1
    """Share of distinct prompts kept for evaluation, by a hash of the prompt, so the two can never overlap."""


@dataclass(frozen=True)
class ReasoningGymData:
    """Any task of reasoning-gym (extra: reasoning-gym)."""

    task: str = "chain_sum"
    """Name of the reasoning-gym task."""
    options: Mapping[str, Scalar] = field(default_factory=dict)
    """Options of the task, as reasoning-gym names them."""
    level: int | None = None
    """Level of the task's curriculum, 0 the easiest; options override it. None takes the task's defaults."""
    size: int = 5_000
    """Problems to draw before duplicates are removed."""
    prompt: str = "{question}\n"
    """Prompt template; {question} is the task's question."""
    system_prompt: str | None = None
    """System message; makes the prompt a chat."""
    few_shot: int = 0
    """Worked examples before every prompt: training problems, which are then not trained on."""
    few_shot_answer: str = "{answer}"
    """How an example is answered: a template over the problem's fields; {answer} is the reference answer."""
    held_out_fraction: float = 0.1
    """Share of distinct prompts kept for evaluation, by a hash of the prompt, so the two can never overlap."""


@dataclass(frozen=True)
class FileData:
    """Problems from files."""

    path: str = ""
    """A .jsonl, .jsonl.gz, .csv, .parquet or .arrow file, a folder or a pattern of them, or hf://datasets/OWNER/NAME/PATTERN."""
    prompt: str = "{question}\n"
    """Prompt template over the row's fields, e.g. "{Body} {Question}"."""
    messages_field: str | None = None
    """Field that holds chat messages (a list of {role, content}); used in place of `prompt`."""
    system_prompt: str | None = None
    """System message; makes the prompt a chat."""
    few_shot: int = 0
    """Worked examples before every prompt: training problems, which are then not trained on."""
    few_shot_answer: str = "{answer}"
    """How an example is answered: a template over the problem's fields; {answer} is the reference answer."""
    answer_field: str = "answer"
    """Field that holds the reference answer."""
    answer_pattern: str | None = None
    """Regular expression whose first group is the answer, e.g. r"####\\s*(.+)" for GSM8K; None takes the field whole."""
    held_out_path: str | None = None
    """A separate file of evaluation problems; a prompt found in both files is an error."""
    held_out_fraction: float = 0.1
    """Without held_out_path: share of distinct prompts kept for evaluation, by a hash of the prompt."""
    allow_overlap: bool = False
    """Warn of prompts that are in both files, in place of refusing them."""


@dataclass(frozen=True)
class TfdsData:
    """Problems from a data set prepared by tensorflow-datasets, read without TensorFlow."""

    name: str = "gsm8k"
    """Name of the data set, with a config after a slash: math_dataset/arithmetic__add_or_sub."""
    split: str = "train"
    """Split to train on; it can be sliced, as in train[:10%], if the data set is stored as array_record."""
    held_out_split: str | None = None
    """Split to evaluate on; a prompt found in both is an error."""
    data_dir: str | None = None
    """Folder of prepared data sets; None is tensorflow-datasets' own."""
    prompt: str = "{question}\n"
    """Prompt template over the features, e.g. "{question}\n"."""
    system_prompt: str | None = None
    """System message; makes the prompt a chat."""
    few_shot: int = 0
    """Worked examples before every prompt: training problems, which are then not trained on."""
    few_shot_answer: str = "{answer}"
    """How an example is answered: a template over the problem's fields; {answer} is the reference answer."""
    answer_field: str = "answer"
    """Feature that holds the reference answer."""
    answer_pattern: str | None = None
    """Regular expression whose first group is the answer; None takes the feature whole."""
    held_out_fraction: float = 0.1
    """Without held_out_split: share of distinct prompts kept for evaluation, by a hash of the prompt."""
    allow_overlap: bool = False
    """Warn of prompts that are in both splits, in place of refusing them."""


@dataclass(frozen=True)
class PresetData:
    """A well-known problem set, with its fields, prompt and answers as `grpo_jax.tasks.presets` describes them."""

    name: str = "gsm8k"
    """gsm8k, math, math500, dapo17k, polaris, svamp, aime24, aime25, amc23, minerva, olympiadbench, hmmt25, humaneval,
    mbpp or livecodebench."""
    path: str = ""
    """Where its file is, as in FileData.path; empty looks in the folder that GRPO_JAX_DATA names."""
    held_out_path: str | None = None
    """A separate file of evaluation problems of the same layout."""
    prompt: str | None = None
    """Prompt template in place of the preset's."""
    system_prompt: str | None = None
    """System message; makes the prompt a chat."""
    few_shot: int = 0
    """Worked examples before every prompt: training problems, which are then not trained on."""
    few_shot_answer: str | None = None
    """How an example is answered: a template over the problem's fields; {answer} is the reference answer.
    None takes the preset's own."""
    held_out_fraction: float = 0.1
    """Without held_out_path: share of distinct prompts kept for evaluation, by a hash of the prompt."""
    allow_overlap: bool = False
    """Warn of prompts that are in both files, in place of refusing them."""


@dataclass(frozen=True)
class Component:
    """One source of a mixture."""

    source: ArithmeticData | ReasoningGymData | FileData | TfdsData | PresetData = field(
        default_factory=ArithmeticData
    )
    """Where its problems come from."""
    weight: float = 1.0
    """Its share of the training problems drawn, relative to the others'."""


@dataclass(frozen=True)
class MixtureData:
    """Problems of several sources, drawn by weight."""

    components: tuple[Component, ...] = ()
    """The sources and their weights."""


@dataclass(frozen=True)
class DifficultyData:
    """Problems of a source, drawn by how difficult they are."""

    source: ArithmeticData | ReasoningGymData | FileData | TfdsData | PresetData = field(
        default_factory=ArithmeticData
    )
    """Where the problems come from."""
    field: str = "difficulty"
    """Metadata that says how difficult a problem is: a number, a fraction such as 3/8, or a text that ends in a number."""
    edges: tuple[float, ...] = ()
    """Increasing bounds between strata; stratum i holds difficulties from edge i - 1 up to below edge i."""
    weights: tuple[float, ...] = (1.0,)
    """Share of the training problems drawn from each stratum, one more than there are edges; 0 leaves a stratum out."""


Data = ArithmeticData | ReasoningGymData | FileData | TfdsData | PresetData | MixtureData | DifficultyData
