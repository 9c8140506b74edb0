"""Tries, with the launcher that will be used, whether each promise of the sandbox holds on this machine."""

import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from grpo_jax import scratch
from grpo_jax.rewards.code_worker import GUEST, run_script
from grpo_jax.rewards.launchers import LAUNCHERS, environment
from grpo_jax.rewards.sandbox import GRACE_SECONDS, Exit, Guest, GuestLimits, outcome, supervise

CANARY = "GRPO_JAX_PROBE_CANARY"
LIMITS = GuestLimits(cpu_seconds=1, wall_seconds=10, memory_bytes=256 << 20)


def find_launcher(allowed: tuple[str, ...] = tuple(LAUNCHERS)) -> str:
    """The first launcher that keeps every promise here, or an error that says what to do."""
    reasons = []
    for name in allowed:
        missing = LAUNCHERS[name].missing()
        broken = [] if missing else probe(name)
        if not missing and not broken:
            return name
        reasons.append(f"{name}: {missing or 'a program in it can ' + ', '.join(broken)}")
    raise ValueError(
        "reward code: no sandbox here keeps its promises, so no program is run.\n  "
        + "\n  ".join(reasons)
        + "\nInstall sandlock on a Linux kernel with Landlock (pip install 'grpo_jax[code]'), or the package "
        "bubblewrap and start the run as an ordinary user."
    )


def probe(name: str) -> list[str]:
    """What a program can do in this sandbox that it must not; empty if the sandbox holds."""
    return [*_attempts(name), *_bombs(name), *_leftovers(name)]


def _attempts(name: str) -> list[str]:
    outside = Path(tempfile.mkdtemp(prefix="grpo_jax_probe_"))
    written = [Path(parent) / f"{outside.name}.new" for parent in ("/tmp", "/dev/shm")]
    bystander = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    os.environ[CANARY] = CANARY
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as tcp,
            socket.socket(socket.AF_UNIX) as unix,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        ):
            unix.bind("\0" + outside.name)
            unix.listen()
            udp.bind(("127.0.0.1", 0))
            (outside / "file").write_text("secret")
            targets = {
                "tcp": tcp.getsockname(),
                "udp": udp.getsockname(),
                "unix": outside.name,
                "file": str(outside / "file"),
                "tmp": "" if name == "bubblewrap" else str(written[0]),
                "shm": str(written[1]),
                "canary": CANARY,
                "given": list(environment(outside)),
                "pid": bystander.pid,
                "sees_pids": name != "bubblewrap",  # in there the number is another process's, if any
                "processes": LIMITS.processes,
                "file_bytes": LIMITS.file_bytes,
            }
            ended, output = run_script(name, (GUEST / "probe.py").read_text(), json.dumps(targets), LIMITS)
            arrived, _, _ = select.select([udp], [], [], 0)
    finally:
        del os.environ[CANARY]
        bystander.kill()
        bystander.wait()
        for path in written:
            path.unlink(missing_ok=True)
        scratch.remove(outside)
    if ended != Exit("exit", 0) or not output:
        return [f"not even run ({ended.reason} {ended.code})"]
    return [*json.loads(output), *(["send by UDP"] if arrived else [])]


def _bombs(name: str) -> list[str]:
    broken = []
    hungry = f"x = bytearray({2 * LIMITS.memory_bytes}); print('had it')"
    # Time enough to clear that much on a busy machine: killed for its time, a program that had the memory would pass.
    patient = LIMITS._replace(cpu_seconds=10, wall_seconds=60)
    if "had it" in (run_script(name, hungry, "", patient)[1] or ""):
        broken.append("take twice its memory")
    start = time.monotonic()
    ended, _ = run_script(name, "while True: pass", "", LIMITS)
    # On a busy machine the second of processor time may not be used up when its time is over.
    late = time.monotonic() - start > LIMITS.wall_seconds + GRACE_SECONDS
    if ended.reason not in ("killed", "timeout") or late:
        broken.append("run for ever")
    ended, _ = run_script(name, "import time; time.sleep(60)", "", LIMITS._replace(wall_seconds=1))
    if ended.reason != "timeout":
        broken.append("sleep for ever")
    return broken


def _leftovers(name: str) -> list[str]:
    """Whether a grandchild in a session of its own outlives its program: it would keep the output open."""
    program = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    os.fork()\n    time.sleep(60)"
    with tempfile.TemporaryDirectory(prefix="grpo_jax_probe_") as name_outside:
        folder = Path(name_outside) / "0"
        folder.mkdir()
        folder.parent.chmod(0o711)
        (folder / "program.py").write_text(program)
        shutil.copyfile(GUEST / "solver.py", folder / "solver.py")
        read_end, write_end = os.pipe()
        null = os.open(os.devnull, os.O_RDWR)
        try:
            guest = Guest(["solver.py", "script", "program.py"], folder, null, write_end, write_end)
            supervised = supervise(LAUNCHERS[name], guest, LIMITS)
            os.close(write_end)
            outcome(supervised)
            closed, _, _ = select.select([read_end], [], [], 2)
        finally:
            os.close(read_end)
            os.close(null)
    return [] if closed else ["leave processes behind"]
