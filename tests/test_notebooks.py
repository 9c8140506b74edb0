"""Every notebook runs from top to bottom on a CPU, in a fresh kernel of this interpreter, in time."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SECONDS = 240
"""They promise two minutes; a test machine is shared."""


@pytest.fixture
def kernel(tmp_path, monkeypatch) -> str:
    """The name of a kernel that is this interpreter and can import grpo_jax, whatever is installed."""
    folder = tmp_path / "kernels" / "this_interpreter"
    folder.mkdir(parents=True)
    arguments = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (folder / "kernel.json").write_text(
        json.dumps({"argv": arguments, "display_name": folder.name, "language": "python"})
    )
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    return folder.name


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_without_error_in_time(path, kernel, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    start = time.monotonic()
    # A cell that raises or outlives its timeout raises here, with the cell and the error.
    NotebookClient(
        notebook, kernel_name=kernel, timeout=SECONDS, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    assert time.monotonic() - start < SECONDS
    pictures = [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    assert len(pictures) >= 8


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_committed_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code and all(not cell.outputs and cell.execution_count is None for cell in code)


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def install(request, monkeypatch):
    """Runs a notebook's first code cell where grpo_jax is not installed, with the repository that the reader fills in.

    Gives the commands that would have been run; pip ends with `status`.
    """
    cells = nbformat.read(request.param, as_version=4).cells
    source = next(cell.source for cell in cells if cell.cell_type == "code")

    def run(repository: str, *, status: int = 0) -> list[list[str]]:
        commands = []

        def pretended(command, **_):
            commands.append(command)
            return subprocess.CompletedProcess(command, status, "", "no such repository")

        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        monkeypatch.setattr(subprocess, "run", pretended)
        assert source.count('REPOSITORY = ""') == 1
        exec(source.replace('REPOSITORY = ""', f"REPOSITORY = {repository!r}"), {})
        return commands

    return run


@pytest.mark.parametrize("repository", ["", "grpo_jax", "https://github.com/someone/grpo_jax"])
def test_without_a_repository_the_install_cell_says_what_to_fill_in(install, repository):
    with pytest.raises(
        ValueError, match=r"Set REPOSITORY in this cell .* as owner/name .* run the cell again"
    ):
        install(repository)


def test_the_install_cell_installs_from_the_repository(install):
    assert [command[-1] for command in install("someone/grpo_jax")] == [
        "git+https://github.com/someone/grpo_jax"
    ]
    with pytest.raises(RuntimeError, match=r"cannot install .*someone/other:\nno such repository"):
        install("someone/other", status=1)


def test_there_are_notebooks():
    assert NOTEBOOKS
