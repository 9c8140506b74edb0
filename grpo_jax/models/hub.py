"""Where a model's files are: a local folder, or a snapshot of a hub repository at a pinned revision."""

from pathlib import Path

TOKENIZER_FILES = ("*.json", "*.jinja", "tokenizer.model", "*.txt")
"""What a tokenizer and the configs need."""


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
