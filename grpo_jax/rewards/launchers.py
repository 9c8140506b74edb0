"""The two ways to start a guest, and what a guest may see and call."""

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo_jax.rewards.sandbox import Exit, Guest, GuestLimits, Launcher, Running


def interpreter() -> Path:
    """The Python that guests run: the base of this one, whose installed packages are out of their reach."""
    return Path(os.path.realpath(sys.executable))


def standard_library() -> Path:
    """Where the interpreter's own modules are."""
    return Path(sysconfig.get_paths()["stdlib"])


def environment(folder: Path) -> dict[str, str]:
    """All a guest sees of the environment. The hash seed makes its results the same every time."""
    home = str(folder)
    return {"PATH": "/usr/bin:/bin", "HOME": home, "TMPDIR": home, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}


def command(python: Path, guest: Guest) -> list[str]:
    """The guest's command line: no site packages, no path of the script's, no bytecode files."""
    return [str(python), "-s", "-S", "-P", "-B", "-X", "utf8", *guest.arguments]


# What sandlock leaves open because Landlock does not know it: attributes of files anywhere that the user
# owns, limits, priorities and handles of the user's other processes, and watching files.
DENIED = [
    "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", "utime",
    "utimes", "utimensat", "futimesat", "setxattr", "lsetxattr", "fsetxattr", "removexattr",
    "lremovexattr", "fremovexattr", "prlimit64", "setrlimit", "pidfd_open", "pidfd_getfd",
    "pidfd_send_signal", "sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr",
    "setpriority", "ioprio_set", "migrate_pages", "move_pages", "kcmp", "process_madvise",
    "process_mrelease", "inotify_add_watch", "inotify_init", "inotify_init1", "fanotify_init",
    "fanotify_mark", "syslog", "name_to_handle_at", "open_by_handle_at",
]  # fmt: skip


class Sandlock:
    """Landlock and seccomp; needs a recent Linux kernel and no privileges."""

    name = "sandlock"

    def missing(self) -> str | None:
        if os.geteuid() == 0 and shutil.which("setpriv") is None:
            return "root needs setpriv (package util-linux) to give up its capabilities"
        try:
            import sandlock
        except (ImportError, OSError) as error:
            return f"{error}: pip install 'grpo_jax[code]'"
        try:
            have, need = sandlock.landlock_abi_version(), sandlock.min_landlock_abi()
        except Exception as error:
            return str(error)
        return None if have >= need else f"the kernel has Landlock ABI {have}, it needs {need}"

    def start(self, guest: Guest, limits: GuestLimits) -> Running:
        import sandlock

        python, library = interpreter(), standard_library()
        readable = [
            python,
            library,
            *library.parent.glob("libpython*"),
            *_shared_libraries(),
            *_setpriv()[:1],
        ]
        packages = (library / "site-packages", library / "dist-packages")
        box = sandlock.Sandbox(
            fs_readable=[str(path) for path in (*readable, "/dev/urandom")],
            fs_denied=[str(path) for path in packages if path.exists()],
            fs_writable=[str(guest.folder), "/dev/null"],
            cwd=str(guest.folder),
            clean_env=True,
            env=environment(guest.folder),
            max_memory=limits.memory_bytes,
            max_processes=limits.processes,
            no_coredump=True,
            extra_deny_syscalls=DENIED,
        )
        with _streams(guest):
            return _SandlockGuest(box.popen([*_setpriv(), *command(python, guest)]))


class _SandlockGuest:
    def __init__(self, process: Any) -> None:
        self._process = process

    def wait(self, timeout: float) -> Exit:
        start = time.monotonic()
        result = self._process.wait(timeout=timeout)
        if result.reason.name == "EXITED":
            return Exit("exit", result.exit_code)
        if time.monotonic() - start >= timeout:
            return Exit("timeout", -1)
        return Exit("killed", -1)

    def kill(self) -> None:
        self._process.kill()


ISOLATION = [
    "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--disable-userns",
    "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL", "--uid", "65534",
    "--gid", "65534", "--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev",
]  # fmt: skip
BINDS = ("/usr/lib", "/lib", "/lib64", "/usr/lib64", "/usr/bin/prlimit")


class Bubblewrap:
    """Namespaces; needs the bwrap program and, if root started the run, a Python that others may read."""

    name = "bubblewrap"

    def missing(self) -> str | None:
        if not os.path.exists("/usr/bin/bwrap") or not os.path.exists("/usr/bin/prlimit"):
            return "there is no bwrap or no prlimit: install the packages bubblewrap and util-linux"
        if os.geteuid() == 0 and _python_for_all() is None:
            return "no Python that an unprivileged user can read, and the run was started by root"
        return None

    def start(self, guest: Guest, limits: GuestLimits) -> Running:
        python, become = interpreter(), []
        if os.geteuid() == 0:
            # A root that is only renamed is not bound by limits on processes: become someone else for real.
            user = 1_000_000 + os.getpid()
            python = _python_for_all() or python
            for path in (guest.folder, *guest.folder.iterdir()):
                os.chown(path, user, user)
            become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"]
        limit = ["/usr/bin/prlimit", f"--nproc={limits.processes}", f"--as={limits.memory_bytes}", "--"]
        process = subprocess.Popen(
            [*become, "bwrap", *ISOLATION, *_mounts(python, guest), *limit, *command(python, guest)],
            stdin=guest.stdin,
            stdout=guest.stdout,
            stderr=guest.stderr,
            env={},  # --clearenv would leave the caller's in /proc/1/environ; programs are found in /usr/bin
        )
        return _BubblewrapGuest(process)


def _mounts(python: Path, guest: Guest) -> list[str]:
    """The interpreter and its libraries, without installed packages; the guest's folder; nothing else."""
    if python.is_relative_to("/usr"):
        library = Path("/usr")
        readable = [python, *library.glob("lib/python3*")]
    else:
        library = python.parent.parent
        readable = [library]
    hidden = [*library.glob("lib/python3*/site-packages"), *library.glob("lib/python3*/dist-packages")]
    arguments = []
    for path in (*(path for path in BINDS if os.path.exists(path)), *map(str, readable)):
        arguments += ["--ro-bind", path, path]
    for path in hidden:
        arguments += ["--tmpfs", str(path), "--remount-ro", str(path)]
    arguments += ["--bind", str(guest.folder), str(guest.folder), "--chdir", str(guest.folder)]
    for name, value in environment(guest.folder).items():
        arguments += ["--setenv", name, value]
    return [*arguments, "--remount-ro", "/"]  # last, because the mounts above still make their mount points


class _BubblewrapGuest:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def wait(self, timeout: float) -> Exit:
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
            return Exit("timeout", -1)
        if code < 0 or code > 128:
            return Exit("killed", code)
        return Exit("exit", code)

    def kill(self) -> None:
        self._process.kill()


@contextlib.contextmanager
def _streams(guest: Guest) -> Iterator[None]:
    """While the guest starts, the supervisor's own streams, which it inherits, are the guest's."""
    kept = [os.dup(stream) for stream in range(3)]
    try:
        for stream, source in enumerate((guest.stdin, guest.stdout, guest.stderr)):
            os.dup2(source, stream)
        yield
    finally:
        for stream, source in enumerate(kept):
            os.dup2(source, stream)
            os.close(source)


def _shared_libraries() -> list[Path]:
    machine = f"/usr/lib/{os.uname().machine}-linux-gnu"
    names = ("/lib64", "/usr/lib64", machine, "/etc/ld.so.cache", "/etc/localtime")
    return [Path(name) for name in names if os.path.exists(name)]


def _setpriv() -> list[str]:
    """Root without capabilities; what it still owns is closed by DENIED."""
    setpriv = shutil.which("setpriv")
    if os.geteuid() != 0 or setpriv is None:
        return []
    return [setpriv, "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--"]


def _python_for_all() -> Path | None:
    """A Python that any user may run."""
    for candidate in (
        interpreter(),
        *map(Path, filter(None, [shutil.which("python3", path="/usr/local/bin:/usr/bin")])),
    ):
        path = Path(os.path.realpath(candidate))
        if path.is_file() and all(os.stat(part).st_mode & 0o005 == 0o005 for part in (path, *path.parents)):
            return path
    return None


LAUNCHERS: dict[str, Launcher] = {launcher.name: launcher for launcher in (Sandlock(), Bubblewrap())}
