"""Programs that a sandbox must stop.

Words in capitals stand for things outside: a file, the project, a port, the process that calls. A last line,
added to each escape, prints ESCAPED; SEES_PIDS and OWN_IPC stop before it where to succeed is no escape.
"""

ESCAPES = {
    "tcp": "import socket; socket.create_connection(('127.0.0.1', PORT), 2)",
    "tcp to the internet": "import socket; socket.create_connection(('1.1.1.1', 53), 2)",
    "tcp by ipv6": "import socket; socket.create_connection(('::1', PORT), 2)",
    "dns": "import socket; socket.getaddrinfo('example.com', 80)",
    "dns by hand": (
        "import socket; s = socket.socket(2, 2); s.settimeout(1); s.sendto(b'x' * 20, ('8.8.8.8', "
        "53)); s.recv(1)"
    ),
    "http": "import urllib.request; urllib.request.urlopen('http://127.0.0.1:PORT', timeout=2)",
    "raw socket": "import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "abstract socket": "import socket; socket.socket(socket.AF_UNIX).connect('\\0grpo_jax_test_socket')",
    "shadow": "open('/etc/shadow').read()",
    "passwords by the shell": (
        "import subprocess; assert subprocess.run('cat CANARY', shell=True, capture_output=True).stdout"
    ),
    "project file": "open('PROJECT').read()",
    "canary": "open('CANARY').read()",
    "canary by symlink": "import os; os.symlink('CANARY', 'link'); open('link').read()",
    "canary by hard link": "import os; os.link('CANARY', 'link'); open('link').read()",
    "canary by dot dot": "open('../' * 20 + 'CANARY'.lstrip('/')).read()",
    "canary by os.open": "import os; os.read(os.open('CANARY', os.O_RDONLY), 1)",
    "canary by ctypes": "import ctypes; c = ctypes.CDLL(None); assert c.open(b'CANARY', 0) >= 0",
    "canary by sendfile": "import os; os.sendfile(1, os.open('CANARY', 0), 0, 10)",
    "canary by a child": (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', \"open('CANARY')\"], check=True)"
    ),
    "list the folder outside": "import os; assert set(os.listdir('..')) - {'0'}",
    "list home": "import os, pathlib; assert os.listdir('HOMEFOLDER')",
    "environment": (
        "import os; assert set(os.environ) - {'PATH', 'HOME', 'TMPDIR', 'LANG', 'PYTHONHASHSEED', "
        "'LC_CTYPE', 'PWD'}"
    ),
    "environment of the parent": "import os; assert open(f'/proc/{os.getppid()}/environ').read(1)",
    "environment of the caller": "assert open('/proc/CALLER/environ').read(1)",
    "memory of the caller": "assert open('/proc/CALLER/maps').read(1)",
    "command line of the caller": "assert open('/proc/CALLER/cmdline').read(1)",
    "root by proc": "import os; assert os.listdir('/proc/CALLER/root')",
    "write outside": "open('CANARY', 'w').write('x')",
    "write beside": "open('../beside', 'w').write('x')",
    "write in dev shm": "open('/dev/shm/grpo_jax_escape', 'w').write('x')",
    "truncate": "import os; os.truncate('CANARY', 0)",
    "remove": "import os; os.remove('CANARY')",
    "rename": "import os; os.rename('program.py', '../moved')",
    "change mode": "import os; os.chmod('CANARY', 0o777)",
    "change owner": "import os; os.chown('CANARY', os.getuid(), -1)",
    "change time": "import os; os.utime('CANARY')",
    "extended attribute": "import os; os.setxattr('CANARY', 'user.a', b'1')",
    "device": "import os; os.mknod('disk', 0o60600, os.makedev(8, 0)); open('disk').read(1)",
    "signal the caller": "import os; os.kill(CALLER, 0); SEES_PIDS",
    "signal the parent": "import os; os.kill(os.getppid(), 15); import time; time.sleep(0.2); SEES_PIDS",
    "signal everyone": "import os; os.kill(-1, 19); import time; time.sleep(0.2); raise SystemExit",
    "limit the caller": (
        "import resource; resource.prlimit(CALLER, resource.RLIMIT_NOFILE, (99, 99)); SEES_PIDS"
    ),
    "raise its limits": "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 40, 1 << 40))",
    "ptrace": (
        "import ctypes; c = ctypes.CDLL(None, use_errno=True); assert c.ptrace(16, CALLER, 0, 0) == 0"
    ),
    "mount": "import ctypes; c = ctypes.CDLL(None); assert c.mount(b'none', b'.', b'tmpfs', 0, None) == 0",
    "namespaces": "import ctypes; c = ctypes.CDLL(None); assert c.unshare(0x10000000) == 0",
    "become root": "import os; os.setuid(0); open('/etc/shadow').read()",
    "chroot": "import os; os.mkdir('d'); os.chroot('d')",
    "handle of the caller": "import os; os.pidfd_open(CALLER)",
    "kernel programs": "import ctypes; c = ctypes.CDLL(None); assert c.syscall(321, 0, None, 0) >= 0",
    "io_uring": (
        "import ctypes; b = ctypes.create_string_buffer(200); assert ctypes.CDLL(None).syscall(425, "
        "8, b) >= 0; OWN_IPC"
    ),
    "shared memory": (
        "import ctypes; c = ctypes.CDLL(None); assert c.shmget(0x6772706F, 4096, 0o1666) >= 0; OWN_IPC"
    ),
    "set the clock": "import time; time.clock_settime(time.CLOCK_REALTIME, time.time())",
    "import the project": "import sys; sys.path += ['ROOT']; import grpo_jax",
    "import packages": "import sys; sys.path += PACKAGES; import numpy",
    "open descriptors": (
        "import os\n"
        "for fd in range(3, 200):\n"
        "    try: os.fstat(fd)\n"
        "    except OSError: continue\n"
        "    raise SystemExit('ESCAPED')\n"
        "raise ValueError"
    ),
}
"""Each must fail, or end, before it comes to its last line."""

BOMBS = {
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "fork bomb that sleeps": (
        "import os, time\n"
        "for _ in range(1000):\n"
        "    try:\n"
        "        if os.fork() == 0: time.sleep(60)\n"
        "    except OSError: pass"
    ),
    "thread bomb": (
        "import threading, time\nwhile True:\n    threading.Thread(target=time.sleep, args=(60,)).start()"
    ),
    "memory bomb": "x = []\nwhile True: x.append(bytearray(1 << 24))",
    "memory bomb in children": (
        "import os\nfor _ in range(6): os.fork()\nx = bytearray(200 << 20)\nimport time; time.sleep(60)"
    ),
    "output flood": "while True: print('x' * 10000)",
    "error flood": "import sys\nwhile True: print('x' * 10000, file=sys.stderr)",
    "file flood": (
        "i = 0\nwhile True:\n    i += 1\n    with open(str(i), 'wb') as file: file.write(b'x' * (8 << 20))"
    ),
    "small file flood": "i = 0\nwhile True:\n    i += 1\n    open(str(i), 'w').close()",
    "loop": "while True: pass",
    "sleep": "import time; time.sleep(1000)",
    "sleep with signals ignored": (
        "import signal, time\nfor s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)\ntime.sleep(1000)"
    ),
    "big power": "9 ** 9 ** 9 ** 9",
    "regular expression": "import re; re.match('(a+)+$', 'a' * 100 + 'b')",
    "deep recursion": "import sys; sys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
    "daemon": (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0: time.sleep(1000)\n"
        "else: time.sleep(1000)"
    ),
}
"""Each must be ended."""

FORGERIES = [
    "import sys; sys.exit(0)",
    "import os; os._exit(0)",
    "print('[true, true]')\nimport sys; print('[true, true]', file=sys.stderr)",
    "class Equal:\n    def __eq__(self, other): return True\ndef f(x): return Equal()",
    "class Equal(int):\n    def __eq__(self, other): return True\ndef f(x): return Equal(99)",
    "import builtins; builtins.AssertionError = None\ndef f(x): return 99",
    (
        "import os\n"
        "for fd in range(200):\n"
        "    try: os.write(fd, b'\\n[true, true]\\n')\n"
        "    except OSError: pass\n"
        "def f(x): return 99"
    ),
    "def f(x):\n    raise SystemExit(0)",
    "def f(x):\n    raise KeyboardInterrupt",
    "def check(*a): pass\ndef g(x): pass\ndef f(x): return 99",
    "import time\ndef f(x): time.sleep(100)",
    "def f(x):\n    while True: pass",
    "def f(x): return iter(int, 1)",
    "def f(x): return 'x' * 10**8",
    "syntax error",
    "",
]
"""Each claims to pass tests that it does not pass."""
