"""Temporary folders: one whose process is gone is removed, whatever is in it; one in use is not."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_jax import scratch

ORDINARY_USER = 12345
PROCESS = """
import time
from grpo_jax import scratch
folder = scratch.own()
(folder / "file").write_text("x")
print(folder, flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_a_killed_process_s_folder_is_removed_by_the_next_and_a_living_one_s_is_kept(temporary):
    root = os.path.dirname(os.path.dirname(scratch.__file__))
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": root}
    processes = [
        subprocess.Popen([sys.executable, "-c", PROCESS], stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(2)
    ]
    try:
        folders = [process.stdout.readline().strip() for process in processes]
        processes[0].kill()
        processes[0].wait()
        assert all(os.path.exists(folder) for folder in folders)
        with scratch.folder() as mine:
            assert {str(path) for path in temporary.iterdir()} == {folders[1], str(mine)}
            scratch.sweep()  # not one of its own either
            assert mine.exists()
        assert [str(path) for path in temporary.iterdir()] == [folders[1]]
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stdout.close()


def test_another_user_s_folder_is_left_alone(temporary, monkeypatch):
    (temporary / f"{scratch.PREFIX}theirs").mkdir()
    user = os.geteuid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: user + 1)
        scratch.sweep()
    assert list(temporary.iterdir())
    scratch.sweep()
    assert not list(temporary.iterdir())


def test_a_folder_that_is_swept_before_it_is_locked_is_not_handed_out(monkeypatch):
    locked, lock = [], scratch._lock

    def late(path):
        locked.append(path)
        descriptor = lock(path)
        if len(locked) == 1:
            shutil.rmtree(path)
        return descriptor

    monkeypatch.setattr(scratch, "_lock", late)
    assert scratch.own() == locked[1] and locked[1].exists()


def test_folders_deeper_than_python_recurses_are_removed(tmp_path):
    top = tmp_path / "top"
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    scratch.remove(top)
    assert not top.exists()


def test_folders_closed_to_reading_are_removed(tmp_path, monkeypatch):
    """By an ordinary user, whom that would keep out."""
    monkeypatch.chdir(tmp_path)  # the folders around it may be closed to that user
    top = Path("top")
    (top / "closed" / "below").mkdir(parents=True)
    (top / "closed" / "below" / "file").write_text("x")
    (top / "closed").chmod(0)
    root = os.geteuid() == 0
    for path in (tmp_path, top, top / "closed", top / "closed" / "below") if root else ():
        os.chown(path, ORDINARY_USER, -1)
    os.seteuid(ORDINARY_USER if root else os.geteuid())
    try:
        scratch.remove(top)
    finally:
        os.seteuid(os.getuid())
    assert not top.exists()
