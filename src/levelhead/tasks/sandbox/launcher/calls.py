"""Numbers of the system calls that the filter names, and what it does about each of them.

Numbers are the kernel's (``arch/x86/entry/syscalls/syscall_64.tbl`` and ``include/uapi/asm-generic/unistd.h``).  From
424 on they are the same on every machine.
"""

from __future__ import annotations

AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""What a filter sees as the machine of a call: another one means another table of numbers."""

NEWEST = 462
"""Calls with higher numbers are answered as if the kernel did not know them: nobody has looked at them here."""

LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_ENTER = 444, 445, 446
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

# Other processes: their memory, their descriptors, their death.  What a program does to itself needs none of these.
_OTHERS = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "get_robust_list": (274, 100),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "ioprio_set": (251, 30),
    "pidfd_send_signal": (424, 424),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
}
# The system: mounts, namespaces, modules, clocks, keys, and the parts of the kernel that exploits live in.
_SYSTEM = {
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "statmount": (457, 457),
    "listmount": (458, 458),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "create_module": (174, -1),
    "query_module": (178, -1),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "syslog": (103, 116),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, -1),
    "ioperm": (173, -1),
    "modify_ldt": (154, -1),
    "uselib": (134, -1),
    "ustat": (136, -1),
    "personality": (135, 92),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42),
    "vhangup": (153, 58),
}
# Memory that no limit of the process counts, and that may outlive it.
_UNCOUNTED = {
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "mq_notify": (244, 184),
}
ALWAYS = {**_OTHERS, **_SYSTEM, **_UNCOUNTED, "socket": (41, 198)}
"""Refused behind every wall."""

UNKNOWN = {"clone3": (435, 435), "openat2": (437, 437)}
"""Answered as unknown, since a filter cannot see their flags; the C library falls back to clone and openat."""

SHARED_FILES = {
    "chmod": (90, -1),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, -1),
    "fchown": (93, 55),
    "lchown": (94, -1),
    "fchownat": (260, 54),
    "utime": (132, -1),
    "utimes": (235, -1),
    "futimesat": (261, -1),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "inotify_init": (253, -1),
    "inotify_init1": (294, 26),
}
"""Refused where the program shares a file system with its user: Landlock says nothing about them."""

SHARED_PROCESSES = {"setsid": (112, 157), "setpgid": (109, 154)}
"""Refused where the program shares a table of processes: all it starts stays in one group, which one signal ends."""

ARGUMENTS = {
    "clone": (56, 220),
    "socketpair": (53, 199),
    "prlimit64": (302, 261),
    "setpriority": (141, 140),
    "sched_setaffinity": (203, 122),
    "ioctl": (16, 29),
    "fcntl": (72, 25),
    "prctl": (157, 167),
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "open": (2, -1),
    "openat": (257, 56),
    "truncate": (76, 45),
}
"""Judged by their arguments."""
