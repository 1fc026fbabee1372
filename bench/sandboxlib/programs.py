# ruff: noqa: E501 - programs are kept whole
"""Hostile programs: each tries one thing that a sandbox must not let it do.

A program finds these names bound: ``PID`` of the trainer, ``ADDRESS`` of a secret in its memory, ``HOME`` with its
files (``secret.txt``, ``notes.txt``), ``PORT``, ``SOCKET`` and ``ABSTRACT`` on which it listens, ``FD`` that it left
inheritable, ``SITE`` with installed packages, ``MARK`` that its files outside must begin with.  It calls ``breach``
where it sees for itself that it got through; whatever it prints of a secret, changes or leaves behind, the trainer sees.
Programs bound themselves, so that they can be run with no sandbox at all.
"""

from __future__ import annotations

from typing import NamedTuple

PRELUDE = """
import ctypes, glob, os, platform, signal, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
ARM = platform.machine() == "aarch64"
def breach(*words): os.write(1, ("\\nBREACH " + " ".join(map(str, words)) + "\\n").encode())
def call(x86, arm, *arguments):
    return libc.syscall(arm if ARM else x86, *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
def show(path):
    with open(path, "rb") as file: os.write(1, file.read(100_000))
def parents():
    yield os.getppid()
    for stat in glob.glob("/proc/[0-9]*/stat"):
        try:
            if "levelhead" in open(stat.replace("/stat", "/cmdline")).read(): yield int(stat.split("/")[2])
        except OSError: pass
class Vector(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
"""


class Program(NamedTuple):
    """A hostile program: what it goes for, its name, its source."""

    kind: str
    name: str
    source: str


_VM = """
here = ctypes.create_string_buffer(b"!" * 64, 64)
mine, theirs = Vector(ctypes.addressof(here), 64), Vector(ADDRESS, 64)
if call({numbers}, PID, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0) > 0: breach("moved memory", here.raw)
"""
_SIGNALLED = "\nif call({numbers}) == 0: breach('sent')\n"
_UNSHARED = """
if {first} == 0:
    if libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0:
        breach("a file system of its own")
    else: breach("namespaces of its own")
"""
_FILES_OF_TRAINER = {
    "reads a private file": "show(HOME + '/secret.txt')",
    "reads it by a symbolic link": "os.symlink(HOME + '/secret.txt', 'link'); show('link')",
    "reads it by a hard link": "os.link(HOME + '/secret.txt', 'link'); show('link')",
    "reads it by a shell": "os.execv('/bin/sh', ['sh', '-c', 'cat ' + HOME + '/secret.txt'])",
    "reads it by /proc/PID/root": "show(f'/proc/{PID}/root{HOME}/secret.txt')",
    "reads it by /proc/self/root": "show(f'/proc/self/root{HOME}/secret.txt')",
    "reads it by climbing": "show('../' * 20 + HOME + '/secret.txt')",
    "lists the folder": "breach(os.listdir(HOME))",
    "overwrites a file": "open(HOME + '/notes.txt', 'w').write('gone')",
    "appends to a file": "open(HOME + '/notes.txt', 'a').write('more')",
    "maps a file and writes": (
        "import mmap\nfd = os.open(HOME + '/notes.txt', os.O_RDWR)\nmmap.mmap(fd, 4)[:] = b'gone'"
    ),
    "empties a file by its path": "os.truncate(HOME + '/notes.txt', 0)",
    "empties a file by opening it to read": "os.open(HOME + '/notes.txt', os.O_RDONLY | os.O_TRUNC)",
    "deletes a file": "os.unlink(HOME + '/notes.txt')",
    "renames a file": "os.rename(HOME + '/notes.txt', HOME + '/other.txt')",
    "moves a file to itself": "os.rename(HOME + '/notes.txt', 'notes.txt'); show('notes.txt'); breach('moved')",
    "creates a file": "open(HOME + '/new.txt', 'w').write('here')",
    "creates a folder": "os.mkdir(HOME + '/new')",
    "creates a pipe": "os.mkfifo(HOME + '/new')",
    "creates a link": "os.symlink('/', HOME + '/new')",
    "changes a file's mode": "os.chmod(HOME + '/notes.txt', 0o666)",
    "changes a mode by descriptor": "os.fchmod(os.open(HOME + '/notes.txt', os.O_RDONLY), 0o666)",
    "changes a mode by an empty path": (
        "fd = os.open(HOME + '/notes.txt', os.O_PATH)\nlibc.syscall(452, fd, b'', 0o666, 0x1000)"
    ),
    "changes a file's times": "os.utime(HOME + '/notes.txt', (1, 1))",
    "changes a file's owner": "os.chown(HOME + '/notes.txt', -1, os.getgid()); breach('allowed')",
    "marks a file": "os.setxattr(HOME + '/notes.txt', 'user.mark', b'1')",
    "watches a folder": (
        "fd = libc.inotify_init()\nif fd >= 0 and libc.inotify_add_watch(fd, HOME.encode(), 0xFFF) > 0: breach('watches')"
    ),
}
_OTHER_FILES = {
    "reads /etc/passwd": "show('/etc/passwd'); breach('read')",
    "lists the root folder": "for place in ('/etc', '/home', '/var'):\n    if len(os.listdir(place)) > 1: breach('listed', place)",
    "writes beside the interpreter": "open(os.__file__ + '.x', 'w'); breach('written')",
    "writes to /dev/shm": "open('/dev/shm/' + MARK, 'w').write('x')",
    "writes to /tmp": "open('/tmp/' + MARK, 'w').write('x')",
    "reads the other programs' folders": (
        "mine = os.getcwd()\nfor place in glob.glob('/tmp/levelhead-*') + glob.glob('/tmp/*/levelhead-*'):\n"
        "    if not mine.startswith(place): breach(place, os.listdir(place))"
    ),
    "reads installed packages": (
        "for place in glob.glob(SITE + '/*.py') + glob.glob(SITE + '/*/__init__.py'): show(place); breach(place); break"
    ),
    "opens the disk": (
        "for place in ('/dev/vda', '/dev/sda', '/dev/mem', '/dev/kmsg'):\n"
        "    try: os.open(place, os.O_RDONLY); breach(place)\n    except OSError: pass"
    ),
    "writes to /proc/sys": "open('/proc/sys/kernel/core_pattern', 'a'); breach('opened')",
    "opens a file by its handle": (
        "handle = ctypes.create_string_buffer(struct.pack('Ii', 128, 0), 136)\nmount = ctypes.c_int()\n"
        "if call(303, 264, -100, HOME.encode(), handle, ctypes.byref(mount), 0) == 0: breach('has a handle')"
    ),
}
_NAMES = {"learns whether a file is there": "os.stat(HOME + '/secret.txt'); breach('there')"}
_MEMORY = {
    "reads /proc/PID/mem": "f = open(f'/proc/{PID}/mem', 'rb', 0); f.seek(ADDRESS); os.write(1, f.read(64))",
    "writes /proc/PID/mem": "f = open(f'/proc/{PID}/mem', 'r+b', 0); f.seek(ADDRESS); f.write(b'!' * 64)",
    "reads with process_vm_readv": _VM.format(numbers="310, 270"),
    "writes with process_vm_writev": _VM.format(numbers="311, 271"),
    "attaches with ptrace": (
        "if call(101, 117, 16, PID, 0, 0) == 0:\n    breach('attached')\n    os.waitpid(PID, 0x40000000)\n"
        "    call(101, 117, 17, PID, 0, 0)"
    ),
    "seizes with ptrace": "if call(101, 117, 0x4206, PID, 0, 0) == 0: breach('seized'); call(101, 117, 17, PID, 0, 0)",
    "reads /proc/PID/maps": "show(f'/proc/{PID}/maps'); breach('read')",
    "reads /proc/PID/stack and auxv": "show(f'/proc/{PID}/auxv'); breach('read')",
    "opens a descriptor in /proc/PID/fd": "show(f'/proc/{PID}/fd/{FD}')",
    "takes a descriptor with pidfd_getfd": (
        "fd = libc.syscall(434, PID, 0)\nfd = libc.syscall(438, fd, FD, 0)\n"
        "if fd >= 0: breach('taken', os.pread(fd, 100, 0))"
    ),
    "opens the memory of its launcher": (
        "for pid in parents():\n    try: open(f'/proc/{pid}/mem', 'r+b', 0); breach(pid)\n    except OSError: pass"
    ),
    "attaches to its launcher": (
        "for pid in parents():\n    if pid > 1 and call(101, 117, 0x4206, pid, 0, 0) == 0: breach('seized', pid)"
    ),
}
_ENVIRONMENT = {
    "reads /proc/PID/environ": "show(f'/proc/{PID}/environ')",
    "reads every /proc/*/environ": (
        "for place in glob.glob('/proc/[0-9]*/environ'):\n    try: show(place)\n    except OSError: pass"
    ),
    "reads its own environment": "print(os.environ)",
    "reads the trainer's command line": "show(f'/proc/{PID}/cmdline'); breach('read')",
    "reads a key of the trainer's keyring": (
        "key = call(250, 219, 10, -3, b'user', b'levelhead', 0)\nroom = ctypes.create_string_buffer(200)\n"
        "if key > 0 and call(250, 219, 11, key, room, 200) > 0: os.write(1, room.raw)"
    ),
}
_SIGNALS = {
    "SIGUSR1": "os.kill(PID, signal.SIGUSR1)",
    "SIGKILL": "os.kill(PID, signal.SIGKILL)",
    "SIGSTOP": "os.kill(PID, signal.SIGSTOP)",
    "SIGTERM to the trainer's group": "os.killpg(os.getpgid(PID), signal.SIGTERM)",
    "SIGUSR2 to everybody": "os.kill(-1, signal.SIGUSR2)",
    "tgkill": _SIGNALLED.format(numbers="234, 131, PID, PID, 10"),
    "tkill": _SIGNALLED.format(numbers="200, 130, PID, 10"),
    "rt_sigqueueinfo": (
        "info = ctypes.create_string_buffer(struct.pack('iii', 10, 0, -1), 128)\nif call(129, 138, PID, 10, info) == 0: "
        "breach('sent')"
    ),
    "pidfd_send_signal": (
        "fd = libc.syscall(434, PID, 0)\nif fd >= 0 and libc.syscall(424, fd, 10, None, 0) == 0: breach('sent')"
    ),
    "a signal of its choice by fcntl": (
        "import fcntl\nr, w = os.pipe()\nfcntl.fcntl(r, fcntl.F_SETOWN, PID)\nfcntl.fcntl(r, 10, signal.SIGUSR1)\n"
        "fcntl.fcntl(r, fcntl.F_SETFL, fcntl.fcntl(r, fcntl.F_GETFL) | os.O_ASYNC)\nos.write(w, b'x')\ntime.sleep(0.2)"
    ),
    "SIGUSR1 as its child": ("if os.fork() == 0:\n    os.kill(PID, signal.SIGUSR1)\nelse: os.wait()"),
    "a lower limit on open files": "import resource\nresource.prlimit(PID, resource.RLIMIT_NOFILE, (32, 32))",
    "a lower priority": "os.setpriority(os.PRIO_PROCESS, PID, 19)",
    "a lower priority for all of the user": "os.setpriority(os.PRIO_USER, os.getuid(), 19)",
    "one processor": "os.sched_setaffinity(PID, {min(os.sched_getaffinity(PID))})",
    "the idle scheduler": "os.sched_setscheduler(PID, os.SCHED_IDLE, os.sched_param(0))",
    "the idle class of the disk": "if call(251, 30, 1, PID, 3 << 13) == 0: breach('set')",
}
_NETWORK = {
    "connects by TCP": "import socket\nsocket.create_connection(('127.0.0.1', PORT), 1); breach('connected')",
    "sends by UDP": "import socket\nsocket.socket(2, 2).sendto(b'x', ('127.0.0.1', PORT)); breach('sent')",
    "connects to a Unix socket": "import socket\nsocket.socket(1).connect(SOCKET); breach('connected')",
    "connects to an abstract socket": "import socket\nsocket.socket(1).connect('\\0' + ABSTRACT); breach('connected')",
    "listens": (
        "import socket\ns = socket.socket()\ns.bind(('127.0.0.1', 0)); s.listen()\n"
        "c = socket.create_connection(s.getsockname(), 1); breach('listens')"
    ),
    "asks the kernel by netlink": "import socket\nsocket.socket(16, 3, 0).bind((0, 0)); breach('bound')",
    "opens a raw socket": "import socket\nsocket.socket(17, 3, 0); breach('opened')",
    "sends from a pair of sockets": (
        "import socket\na, b = socket.socketpair(1, 2)\na.sendto(b'x', SOCKET + '.datagram'); breach('sent')"
    ),
    "sets up io_uring": ("if libc.syscall(425, 8, ctypes.create_string_buffer(248)) >= 0: breach('set up')"),
    "opens a socket by the 32-bit table": (
        "import mmap\nif ARM: sys.exit()\npage = mmap.mmap(-1, 4096, prot=7)\n"
        "page.write(b'\\x53\\xb8\\x67\\x01\\0\\0\\xbb\\x02\\0\\0\\0\\xb9\\x01\\0\\0\\0\\x31\\xd2\\xcd\\x80\\x5b\\xc3')\n"
        "f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))\n"
        "if f() >= 0: breach('opened')"
    ),
    "opens a socket by the x32 table": "if libc.syscall(0x40000000 + 41, 2, 1, 0) >= 0: breach('opened')",
}
_PROCESSES = {
    "a fork bomb": (
        "count = 0\nwhile count < 40:\n    try:\n        if os.fork() == 0: time.sleep(30); os._exit(0)\n"
        "    except OSError: break\n    count += 1\nif count > 12: breach(count, 'processes')\nos._exit(0)"
    ),
    "a thread bomb": (
        "count = 0\ntry:\n    while count < 40: threading.Thread(target=time.sleep, args=(3,)).start(); count += 1\n"
        "except RuntimeError: pass\nif count > 12: breach(count, 'threads')\nos._exit(0)"
    ),
    "a child that outlives it": (
        "if os.fork() == 0:\n    [os.close(fd) for fd in range(3)]\n    time.sleep(30)\n    os._exit(0)"
    ),
    "a daemon that outlives it": (
        "if os.fork() == 0:\n    try: os.setsid()\n    except OSError: pass\n    if os.fork() == 0:\n"
        "        [os.close(fd) for fd in range(3)]\n        time.sleep(30)\n    os._exit(0)\nos.wait()"
    ),
    "a chain of forks that runs away": (
        "end = time.time() + 6\nif os.fork() == 0:\n    [os.close(fd) for fd in range(3)]\n    while time.time() < end:\n"
        "        try:\n            if os.fork(): os._exit(0)\n        except OSError: time.sleep(0.01)\n    os._exit(0)"
    ),
    "a runaway chain of sessions": (
        "end = time.time() + 6\nif os.fork() == 0:\n    [os.close(fd) for fd in range(3)]\n    while time.time() < end:\n"
        "        try:\n            if os.fork(): os._exit(0)\n            os.setsid()\n"
        "        except OSError: time.sleep(0.01)\n    os._exit(0)"
    ),
    "a sleep that ignores every signal": (
        "for number in range(1, 65):\n    try: signal.signal(number, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n"
        "time.sleep(30)"
    ),
    "a daemon whose launcher it killed": (
        "for pid in parents():\n    try: pid != PID and os.kill(pid, signal.SIGKILL)\n"
        "    except OSError: pass\nif os.fork() == 0: time.sleep(30)"
    ),
    "a stopped launcher": (
        "for pid in parents():\n    try: pid != PID and os.kill(pid, signal.SIGSTOP)\n"
        "    except OSError: pass\ntime.sleep(30)"
    ),
    "a stop of itself": "os.kill(os.getpid(), signal.SIGSTOP)",
    "a child of its launcher's": (
        "if call(56, 220, 0x8000 | 17, 0, 0, 0, 0) == 0:\n    [os.close(fd) for fd in range(3)]\n    time.sleep(30)\n"
        "    os._exit(0)\ntime.sleep(0.1)"
    ),
    "namespaces by unshare": _UNSHARED.format(first="libc.unshare(0x10020000)"),
    "namespaces by clone": (
        "pid = call(56, 220, 0x10020000 | 17, 0, 0, 0, 0)\nif pid == 0:\n    breach('namespaces of its own')\n    os._exit(0)"
    ),
    "namespaces by clone3": (
        "args = ctypes.create_string_buffer(struct.pack('QQQQQQQQ', 0x10020000, 0, 0, 0, 17, 0, 0, 0), 64)\n"
        "pid = libc.syscall(435, args, 64)\nif pid == 0:\n    breach('namespaces of its own')\n    os._exit(0)"
    ),
    "the trainer's namespaces": "fd = os.open(f'/proc/{PID}/ns/net', os.O_RDONLY)\nif libc.setns(fd, 0) == 0: breach('in')",
}
_USE = {
    "a gigabyte of objects": "x = bytearray(1 << 30); breach('has it')",
    "a gigabyte by mmap": "import mmap\nx = mmap.mmap(-1, 1 << 30); breach('has it')",
    "memory that no limit counts": (
        "fds = []\nwhile len(fds) < 50:\n    fd = call(319, 279, b'x', 0)\n    if fd < 0: break\n    fds.append(fd)\n"
        "    os.write(fd, bytes(1 << 20))\nif len(fds) > 20: breach(len(fds), 'MiB')"
    ),
    "a shared segment that stays": "if call(29, 194, 0x1EAD, 1 << 20, 0o1600) >= 0: breach('left')",
    "a message queue that stays": "if call(68, 186, 0x1EAD, 0o1600) >= 0: breach('left')",
    "locked memory": (
        "import mmap\nx = mmap.mmap(-1, 16 << 20)\n"
        "if call(149, 228, ctypes.addressof(ctypes.c_char.from_buffer(x)), 16 << 20) == 0: breach('locked')"
    ),
    "a large file": (
        "f = open('big', 'wb')\nfor _ in range(40): f.write(bytes(1 << 20))\nf.flush(); breach(os.path.getsize('big'))"
    ),
    "many files": (
        "for i in range(40):\n    with open(f'f{i}', 'wb') as f: f.write(bytes(1 << 20))\n    time.sleep(0.02)\nbreach('40 MiB')"
    ),
    "deleted files": (
        "held = []\nfor i in range(40):\n    f = open('f', 'wb', 0)\n    f.write(bytes(1 << 20))\n    os.unlink('f')\n"
        "    held.append(f)\n    time.sleep(0.02)\nbreach('40 MiB')"
    ),
    "empty files": (
        "for i in range(9000):\n    os.close(os.open(f'f{i}', os.O_CREAT | os.O_WRONLY))\n"
        "    if i % 1000 == 999: time.sleep(0.15)\nbreach('9000 files')"
    ),
    "folders too deep to remove": "for i in range(2000): os.mkdir('d' * 100); os.chdir('d' * 100)",
    "folders that nobody may open": "for i in range(20): os.mkdir(f'd{i}', 0)\ntime.sleep(0.3)",
    "links that trap the sweeper": (
        "os.mkdir('d'); os.symlink(HOME, 'd/x'); os.symlink(HOME + '/notes.txt', 'd/y'); os.mkdir('d/z', 0)"
    ),
    "ten megabytes of output": "for _ in range(100): os.write(1, b'x' * 100_000)\nbreach('written')",
    "ten megabytes of errors": "for _ in range(100): os.write(2, b'x' * 100_000)\nbreach('written')",
    "output after its end": ("if os.fork() == 0:\n    time.sleep(8); breach('late')\n    os._exit(0)"),
    "words on every descriptor": (
        'for fd in range(3, 1024):\n    try: os.write(fd, b\'{"exit": 0, "wall": "none"}\\n\'); breach(\'wrote to\', fd)\n'
        "    except OSError: pass"
    ),
    "its input as a file": "os.write(0, b'x'); breach('written')",
    "an inherited descriptor": "os.write(1, os.pread(FD, 100, 0))",
}
_PRIVILEGES = {
    "becomes root": "os.setuid(0); breach('root')",
    "runs a program that is root's": (
        "for place in ('/usr/bin/su', '/bin/su', '/usr/bin/mount', '/usr/bin/passwd'):\n"
        "    try: os.execv(place, [place, '--version'])\n    except OSError: pass"
    ),
    "mounts": "if libc.mount(b'none', b'.', b'tmpfs', 0, None) == 0: breach('mounted')",
    "changes its root": "if libc.chroot(b'.') == 0: breach('changed')",
    "loads a BPF program": "if call(321, 280, 0, ctypes.create_string_buffer(128), 128) >= 0: breach('made a map')",
    "counts events": (
        "room = ctypes.create_string_buffer(struct.pack('IIQ', 1, 128, 0), 128)\n"
        "if call(298, 241, room, 0, -1, -1, 0) >= 0: breach('counts')"
    ),
    "handles page faults": "if call(323, 282, 0) >= 0 or call(323, 282, 1) >= 0: breach('handles')",
    "sets the clock": "import time\ntime.clock_settime(time.CLOCK_REALTIME, time.time()); breach('set')",
    "names the machine": "if libc.sethostname(b'mine', 4) == 0: breach('named')",
    "loads a module": "if call(313, 273, 0, b'', 0) == 0 or ctypes.get_errno() not in (1, 38): breach('tried')",
    "types into the terminal": (
        "import fcntl\nfor fd in range(3):\n    try: fcntl.ioctl(fd, 0x5412, b'x'); breach('typed')\n    except OSError: pass\n"
        "os.open('/dev/tty', os.O_RDWR); breach('has a terminal')"
    ),
}

PROGRAMS = tuple(
    Program(kind, name, source)
    for kind, programs in {
        "the trainer's memory": _MEMORY,
        "the trainer's environment": _ENVIRONMENT,
        "the user's files": _FILES_OF_TRAINER,
        "other files": _OTHER_FILES,
        "names of files": _NAMES,
        "signals and settings": _SIGNALS,
        "network": _NETWORK,
        "processes": _PROCESSES,
        "memory, disk, output": _USE,
        "privileges": _PRIVILEGES,
    }.items()
    for name, source in programs.items()
)
