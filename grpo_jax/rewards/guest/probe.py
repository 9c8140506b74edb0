"""Tries what a guest must not be able to do. Input: targets. Output: what succeeded. Both are JSON."""

import json
import os
import resource
import socket
import sys


def connect(family, address):
    """Whether a connection is made."""
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(2)
        connection.connect(address)
    return True


def send(address):
    """Send a datagram."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        return sender.sendto(b"x", tuple(address)) == 1


def read(path):
    """Whether there is something to read."""
    with open(path, "rb") as file:
        return bool(file.read(1))


def write(path):
    """Whether a file can be made."""
    with open(path, "w") as file:
        return bool(file.write("x"))


def secrets(path, given):
    """Whether a process's environment can be read, and has more in it than guests are given."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return {entry.partition("=")[0] for entry in file.read().split("\0") if entry} - set(given)


def too_many_children(limit):
    """Whether more processes than allowed run at one time."""
    pids = []
    try:
        for _ in range(limit + 1):
            pid = os.fork()
            if pid == 0:
                import time

                time.sleep(30)
                os._exit(0)
            pids.append(pid)
    finally:
        for pid in pids:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
    return True


def large_file(size):
    """Whether a file over the limit can be written."""
    with open("large", "wb") as file:
        for _ in range(size // 65536 + 1):
            file.write(b"x" * 65536)
    return True


def more_limits():
    """Whether a limit can be raised."""
    resource.setrlimit(resource.RLIMIT_CPU, (10_000, 10_000))
    return True


def attempts(t):
    """Name and action of everything that must fail."""
    pid = t["pid"]
    return {
        "connect by TCP": lambda: connect(socket.AF_INET, tuple(t["tcp"])),
        "connect by an abstract socket": lambda: connect(socket.AF_UNIX, "\0" + t["unix"]),
        # Whether it arrives is seen outside: a sandbox may have a network with nobody in it.
        "send by UDP": lambda: send(t["udp"]) and False,
        "resolve a name": lambda: bool(socket.getaddrinfo("example.com", 80)),
        "read a file outside": lambda: read(t["file"]),
        "read /etc/shadow": lambda: read("/etc/shadow"),
        "list the folder outside": lambda: bool(os.listdir(os.path.dirname(t["file"]))),
        "write outside": lambda: write(t["file"] + ".new"),
        "write in /tmp": lambda: t["tmp"] and write(t["tmp"]),
        "write in /dev/shm": lambda: write(t["shm"]),
        "change a file's mode": lambda: os.chmod(t["file"], 0o777) is None,
        "change a file's time": lambda: os.utime(t["file"]) is None,
        "see the environment": lambda: t["canary"] in str(os.environ),
        "see the parent's environment": lambda: secrets(f"/proc/{os.getppid()}/environ", t["given"]),
        "see the first process's environment": lambda: secrets("/proc/1/environ", t["given"]),
        "signal a process outside": lambda: t["sees_pids"] and os.kill(pid, 0) is None,
        "limit a process outside": lambda: (
            t["sees_pids"] and bool(resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0)))
        ),
        "start too many processes": lambda: too_many_children(t["processes"]),
        "write too large a file": lambda: large_file(t["file_bytes"]),
        "raise its limits": more_limits,
    }


def main():
    """Print the names of what worked, and of what should have worked and did not."""
    targets = json.load(sys.stdin)
    worked = []
    for name, attempt in attempts(targets).items():
        try:
            if attempt():
                worked.append(name)
        except (Exception, SystemExit):
            pass
    try:
        write("own")
        read("own")
    except OSError:
        worked.append("be kept from its own folder")
    print(json.dumps(worked))


main()
