"""The sandbox: what a program tries, it must not be able to do; the self-test sees one that leaks."""

import os
import shutil
import signal
import socket
import sys
import tempfile
import time

import pytest

pytest.importorskip("pebble")

from grpo_jax.rewards import code_worker, sandbox_probe
from grpo_jax.rewards.code_worker import Cases, UnitTests
from grpo_jax.rewards.launchers import LAUNCHERS
from grpo_jax.rewards.pool import Limits, OutOfBounds, Pool
from grpo_jax.rewards.sandbox import Exit, Guest, GuestLimits, folder_bytes, supervise
from tests.rewards.programs import BOMBS, ESCAPES, FORGERIES

LIMITS = GuestLimits(cpu_seconds=1, wall_seconds=2, memory_bytes=256 << 20)
PATIENT = LIMITS._replace(cpu_seconds=10, wall_seconds=60)
"""For programs that should end well, however busy the machine is."""


@pytest.fixture(scope="module")
def pool():
    pool = Pool(limits=Limits(cpu_seconds=60, wall_seconds=120), workers=1)
    yield pool
    pool.close()


@pytest.fixture(scope="module", params=["sandlock", pytest.param("bubblewrap", marks=pytest.mark.slow)])
def launcher(request, pool):
    missing = LAUNCHERS[request.param].missing()
    if missing:
        pytest.skip(missing)
    return request.param


@pytest.fixture(scope="module")
def run(pool, launcher):
    """How a program ended, and what it printed."""

    def run(program, text="", limits=LIMITS):
        (result,) = pool.map(code_worker.run_script, [(launcher, program, text, limits)])
        if isinstance(result, Exception):
            raise result
        return result

    return run


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    """Things outside that a program would like to reach, by the word that stands for each in its source."""
    canary = tmp_path_factory.mktemp("outside") / "canary"
    canary.write_text("secret")
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    listener = socket.create_server(("127.0.0.1", 0))
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind("\0grpo_jax_test_socket")
    abstract.listen()
    yield {
        "CANARY": str(canary),
        "PROJECT": os.path.join(root, "pyproject.toml"),
        "ROOT": root,
        "HOMEFOLDER": os.path.expanduser("~"),
        "PORT": str(listener.getsockname()[1]),
        "CALLER": str(os.getpid()),
        "PACKAGES": repr([path for path in sys.path if path.endswith("site-packages")]),
    }
    assert canary.read_text() == "secret" and canary.stat().st_mode & 0o777 == 0o644
    listener.close()
    abstract.close()


@pytest.mark.parametrize("name", ESCAPES)
def test_escapes_are_stopped(run, launcher, targets, name):
    program = ESCAPES[name]
    for word, value in targets.items():
        program = program.replace(word, value)
    # In bubblewrap a process number or a shared-memory key means one of its own, whatever it is outside, and
    # io_uring reaches no more than other calls.
    own = "raise SystemExit" if launcher == "bubblewrap" else "pass"
    program = program.replace("SEES_PIDS", own).replace("OWN_IPC", own) + "\nprint('ESCAPED')"
    _, output = run(program)
    assert output is not None and "ESCAPED" not in output


def test_ordinary_programs_work(run):
    program = """
import asyncio, collections, json, math, random, re, subprocess, sys, tempfile, threading
thread = threading.Thread(target=print, args=("thread",)); thread.start(); thread.join()
async def three(): await asyncio.sleep(0.01); return 3
print(asyncio.run(three()))
with tempfile.TemporaryFile() as file: file.write(b"x")
print(subprocess.run([sys.executable, "-c", "print('child')"], capture_output=True, text=True).stdout.strip())
print(input()[::-1], sum(map(int, sys.stdin.read().split())))
exit()
"""
    assert run(program, "abc\n1 2\n3\n", PATIENT) == (Exit("exit", 0), "thread\n3\nchild\ncba 6\n")


def guests():
    """Processes that run guests, of anyone."""
    found = set()
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                if b"solver.py\0script\0" in file.read():
                    found.add(entry)
        except OSError:
            pass
    return found


def assert_none_are_left(before):
    """None but those of other tests, which run beside this one."""
    for _ in range(50):
        if guests() <= before:
            return
        time.sleep(0.1)
    raise AssertionError(f"left over: {guests() - before}")


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_end_within_their_limits_and_leave_nothing(run, name):
    before, start = guests(), time.monotonic()
    ended, output = run(BOMBS[name])
    assert ended != Exit("exit", 0) or name == "fork bomb that sleeps"
    assert time.monotonic() - start < LIMITS.wall_seconds + 8
    assert output is None or len(output) <= code_worker.MAX_OUTPUT
    assert_none_are_left(before)


def test_nothing_is_left_for_a_later_case(pool, launcher):
    program = """
import os
for path in ("left", "../left", "../../left", "/tmp/left_by_a_guest"):
    try: print(open(path).read())
    except OSError: pass
    try: open(path, "w").write("left over")
    except OSError: pass
for other in ("../1", "../../0"):
    try: print("saw", os.listdir(other))
    except OSError: pass
print(input())
"""
    cases = Cases(inputs=("1", "2", "3"), outputs=("1", "2", "3"))
    job = (launcher, program, cases, LIMITS)
    assert pool.map(run_cases, [job]) == [[True, True, True]]


def run_cases(launcher, program, cases, limits):
    return code_worker.run_cases(launcher, program, cases, limits, all_cases=True)


@pytest.mark.parametrize("program", FORGERIES)
def test_a_program_cannot_forge_its_own_result(pool, launcher, program):
    tests = UnitTests("def g(x): return 1", ("assert f(1) == 2", "assert g(1) == 1 and f(2) == 3"), "f")
    assert pool.map(code_worker.run_tests, [(launcher, program, tests, LIMITS)]) == [[False, False]]


TAKEOVER = """
import fcntl, json, os, stat
pipes = []
for fd in range(3, 60):
    try:
        if stat.S_ISFIFO(os.fstat(fd).st_mode): pipes.append(fd)
    except OSError: pass
calls, replies = (next(fd for fd in pipes if fcntl.fcntl(fd, fcntl.F_GETFL) & 3 == mode) for mode in (0, 1))
def say(value): os.write(replies, (json.dumps(value) + "\\n").encode())
say([f"f.{name}" for name in ("__init__", "__eq__", "__sub__", "__abs__", "__lt__")])
for line in os.fdopen(calls):
    name = json.loads(line)[1][0][1]
    say({"value": ["plain", None if name.endswith("__init__") else 0 if name[4] in "sa" else True]})
"""
"""Speaks to the tester in the solver's place: f is a class whose objects are equal to everything."""


@pytest.mark.parametrize(
    ("program", "test"),
    [
        (TAKEOVER, "assert f(1) == 2"),
        (TAKEOVER, "assert abs(f(1) - 2) < 1e-6"),
        ("def f(x): return 99\ndef abs(x): return 0", "assert abs(f(1) - 2) < 1e-6"),
        ("def f(x): return 99\ndef set(x): return 0", "assert set(f(1)) == set([1, 2])"),
        ("def f(x): return 99\nclass abs:\n    def of(self): pass", "assert abs(f(1) - 2) < 1e-6"),
        ("def f(x): raise StopIteration", "assert all(map(f, [1, 2]))"),
    ],
    ids=["takes over", "takes over arithmetic", "abs", "set", "class", "StopIteration"],
)
def test_a_program_cannot_bend_what_its_tests_are_made_of(pool, launcher, program, test):
    for entry_point in ("f", ""):
        job = (launcher, program, UnitTests("", (test,), entry_point), LIMITS)
        assert pool.map(code_worker.run_tests, [job]) == [[False]]


def test_a_function_that_is_asked_for_may_have_a_builtin_s_name(pool, launcher):
    """MBPP asks for a `sum` of common divisors."""
    program = "def helper(x): return x\ndef sum(a, b): return helper(6)"
    for entry_point in ("sum", ""):
        job = (launcher, program, UnitTests("", ("assert sum(10, 15) == 6",), entry_point), LIMITS)
        assert pool.map(code_worker.run_tests, [job]) == [[True]]


def test_values_cross_between_program_and_tests(pool, launcher):
    program = """
def same(x): return x
def pairs(n): return ((i, i * i) for i in range(n))
def wrong(): raise KeyError("no")
from collections import Counter, namedtuple
def count(s): return Counter(s)
def point(): return namedtuple("P", "x y")(1, 2)
"""
    values = [
        "None",
        "True",
        "3",
        "2**70",
        "1.5",
        "float('inf')",
        "'é\\ud800'",
        "b'x'",
        "1j",
        "[1, (2, {3})]",
        "{(1,): {2: None}}",
    ]
    tests = [f"assert same({v}) == {v} and type(same({v})) is type({v})" for v in values]
    tests += ["x = same(float('nan')); assert x != x", "assert list(pairs(3)) == [(0, 0), (1, 1), (2, 4)]"]
    tests += ["assert count('aab') == {'a': 2, 'b': 1} and point() == (1, 2)"]
    tests += ["try: wrong()\nexcept KeyError: pass\nelse: assert False", "assert same(x=1) == 1"]
    outcome = pool.map(code_worker.run_tests, [(launcher, program, UnitTests("", tuple(tests)), LIMITS)])
    assert outcome == [[True] * len(tests)]


def test_results_are_the_same_every_time(run):
    program = "import random; print({'a', 'b', 'c', 'd'}, hash('x'))"
    assert run(program)[1] == run(program)[1]


def test_the_self_test_passes_where_the_sandbox_holds(pool, launcher):
    assert pool.map(sandbox_probe.probe, [(launcher,)]) == [[]]


def bombs_where_time_ends_first(launcher):
    kept = sandbox_probe.LIMITS
    sandbox_probe.LIMITS = kept._replace(cpu_seconds=60, wall_seconds=1)
    try:
        return sandbox_probe._bombs(launcher)
    finally:
        sandbox_probe.LIMITS = kept


def test_a_busy_machine_is_not_taken_for_a_sandbox_that_leaks(pool, launcher):
    """There a loop is ended by the clock before it has had its processor time."""
    assert pool.map(bombs_where_time_ends_first, [(launcher,)]) == [[]]


class Leaky:
    """No sandbox at all; for the self-test to refuse."""

    name = "leaky"

    def missing(self):
        return None

    def start(self, guest, limits):
        import subprocess

        from grpo_jax.rewards.launchers import _BubblewrapGuest, command, interpreter

        streams = {"stdin": guest.stdin, "stdout": guest.stdout, "stderr": guest.stderr}
        return _BubblewrapGuest(subprocess.Popen(command(interpreter(), guest), cwd=guest.folder, **streams))


def refuse_leaky():
    LAUNCHERS["leaky"] = Leaky()
    return sandbox_probe.find_launcher(("leaky",))


def test_the_self_test_refuses_what_is_no_sandbox(pool):
    """Every promise that limits alone do not keep is seen to be broken."""
    (error,) = pool.map(refuse_leaky, [()])
    assert isinstance(error, ValueError) and "pip install 'grpo_jax[code]'" in str(error)
    for hole in (
        "connect by TCP, connect by an abstract socket, read a file outside",
        "list the folder outside, write outside, write in /tmp, write in /dev/shm, change a file's mode",
        "change a file's time, see the environment, see the parent's environment",
        "signal a process outside, limit a process outside, start too many processes",
        "send by UDP, take twice its memory",
    ):
        assert hole in str(error)


class Helpless(Leaky):
    """Its guests cannot be killed through it."""

    name = "helpless"

    def start(self, guest, limits):
        running = super().start(guest, limits)

        def kill():
            raise OSError("no such handle")

        running.kill = kill
        return running


def orphan(folder):
    """Starts a guest in a worker that is then gone; the guests there are."""
    shutil.copyfile(sandbox_probe.GUEST / "solver.py", folder / "solver.py")
    (folder / "program.py").write_text("import time; time.sleep(60)")
    worker = os.fork()
    if worker == 0:
        try:
            streams = [os.open(os.devnull, os.O_RDWR) for _ in range(3)]
            guest = Guest(["solver.py", "script", "program.py"], folder, *streams)
            supervise(Helpless(), guest, LIMITS._replace(wall_seconds=30))
            time.sleep(1)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(worker, 0)
    return guests()


def test_a_lost_workers_guest_is_ended_even_where_its_launcher_cannot_kill_it(pool, tmp_path):
    before = guests()
    assert pool.map(orphan, [(tmp_path,)])[0] - before
    assert_none_are_left(before)


def in_a_folder_of_its_own(seconds):
    """The worker's folder for temporary files, with one in it, after so long."""
    with tempfile.TemporaryDirectory():
        time.sleep(seconds)
        return tempfile.gettempdir()


def test_a_killed_worker_s_temporary_files_are_removed():
    pool = Pool(limits=Limits(cpu_seconds=60, wall_seconds=3), workers=1)
    try:
        (first,) = pool.map(in_a_folder_of_its_own, [(0,)])
        assert os.path.isdir(first)
        assert isinstance(pool.map(in_a_folder_of_its_own, [(60,)])[0], OutOfBounds)
        (second,) = pool.map(in_a_folder_of_its_own, [(0,)])
        assert not os.path.exists(first) and os.path.isdir(second)
    finally:
        pool.close()
    assert not os.path.exists(second)


def test_a_program_that_nests_folders_without_end_is_judged_as_any_other(run):
    program = "import os\nfor _ in range(1100):\n    os.mkdir('d'); os.chdir('d')\nprint('deep')"
    assert run(program, "", PATIENT) == (Exit("exit", 0), "deep\n")


def test_what_is_too_deep_to_be_read_is_taken_for_too_much(tmp_path):
    """Else a program could hide what it writes there."""
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=here)
        below = os.open("d" * 250, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    assert folder_bytes(tmp_path, 1 << 20) > 1 << 20


def test_without_any_sandbox_the_error_says_how_to_get_one(monkeypatch):
    for launcher in LAUNCHERS.values():
        monkeypatch.setattr(type(launcher), "missing", lambda self: f"no {self.name} here")
    with pytest.raises(
        ValueError, match="sandlock: no sandlock here\n  bubblewrap: no bubblewrap here\nInstall"
    ):
        sandbox_probe.find_launcher()
