"""Which system calls programs in a sandbox may make, as a seccomp filter for bubblewrap.

Guarantees: a program reaches nothing that the kernel keeps once for the whole machine, where namespaces and control groups do
not divide it: keyrings, asynchronous I/O, sockets of hypervisors and of the kernel's own services, kernel programs, modules,
mounts, clocks, huge pages and the kernel's log. It starts no namespace, types into no other terminal, and changes neither
limits nor scheduling of process 1, which serves the sandbox and has the same user. A call that is newer than this list, or of
the x32 convention, does not exist inside, and a program of another architecture is killed, so no other number leads to a
refused call. What is refused gets EPERM, or ENOSYS where programs then try an older way.

The filter is a classic BPF program; see the kernel's ``Documentation/userspace-api/seccomp_filter.rst``.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.exceptions import InfraError

MACHINES: dict[str, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""The kernel's name of each architecture, AUDIT_ARCH_*."""
NEWEST = 462
"""The last call that may exist, ``mseal`` of Linux 6.10; the same number on both architectures."""
# By name: the number on x86-64, and on aarch64; None if it has no such call.
FORBIDDEN: dict[str, tuple[int | None, int | None]] = {
    **{"add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219)},
    **{"bpf": (321, 280), "perf_event_open": (298, 241), "fanotify_init": (300, 262), "lookup_dcookie": (212, 18)},
    **{"mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "setns": (308, 268)},
    **{"open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431)},
    **{"fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442)},
    **{"name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265)},
    **{"kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142), "acct": (163, 89)},
    **{"init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106)},
    **{"swapon": (167, 224), "swapoff": (168, 225), "quotactl": (179, 60), "quotactl_fd": (443, 443)},
    **{"settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266)},
    **{"syslog": (103, 116), "iopl": (172, None), "ioperm": (173, None)},
}
MISSING: dict[str, tuple[int | None, int | None]] = {
    **{"io_setup": (206, 0), "io_destroy": (207, 1), "io_submit": (209, 2), "io_cancel": (210, 3)},
    **{"io_getevents": (208, 4), "io_pgetevents": (333, 292)},
    **{"io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427)},
    **{"userfaultfd": (323, 282), "memfd_secret": (447, 447), "cachestat": (451, 451)},
    # Its flags lie in memory, where a filter cannot look; the C library then calls `clone`.
    "clone3": (435, 435),
}
ALIEN: dict[str, tuple[int | None, int | None]] = {
    "getpid of x32": (0x40000000 | 39, None),
    "newer": (NEWEST + 1, NEWEST + 1),
}
"""What the filter does not know."""
CLONE, UNSHARE, SOCKET, SOCKETPAIR, IOCTL = (56, 220), (272, 97), (41, 198), (53, 199), (16, 29)
NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""
NEW_TIME = 0x80
"""CLONE_NEWTIME of `unshare`; these bits of `clone` are a signal."""
SUPERVISOR = 1
"""The process of a sandbox's supervisor."""
OF_PROCESS: dict[str, tuple[tuple[int, int], int]] = {
    **{"prlimit64": ((302, 261), 0), "sched_setaffinity": ((203, 122), 0), "sched_setscheduler": ((144, 119), 0)},
    **{"sched_setparam": ((142, 118), 0), "sched_setattr": ((314, 274), 0)},
    **{"setpriority": ((141, 140), 1), "ioprio_set": ((251, 30), 1)},
}
"""Calls that change another process, by name: the numbers, and which argument names the process."""
HUGE_PAGES: dict[str, tuple[tuple[int, int], int, int]] = {
    "mmap": ((9, 222), 3, 0x40000),
    "memfd_create": ((319, 279), 1, 0x4),
    "shmget": ((29, 194), 2, 0o4000),
}
"""Calls that may take huge pages: the numbers, which argument has the flags, and the flag; no group bounds these."""
UNIX, INET, INET6, NETLINK, ROUTE = 1, 2, 10, 16, 0
TERMINAL = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX, which put input into a terminal."""
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL, ERROR = 0x7FFF0000, 0x80000000, 0x00050000
NUMBER, ARCHITECTURE = 0, 4


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction: of two jumps, the first is taken if its comparison holds; both count from the next instruction."""

    code: int
    value: int
    then: int = 0
    otherwise: int = 0

    def packed(self) -> bytes:
        """Return it as the kernel reads it, ``struct sock_filter``."""
        return struct.pack("=HBBI", self.code, self.then, self.otherwise, self.value)


def program(machine: str | None = None) -> bytes:
    """Return the filter of an architecture, by default this machine's, for ``bwrap --seccomp``.

    Raises:
        InfraError: there is no filter for it.
    """
    column = _column(machine or platform.machine())
    refused, absent = ERROR | errno.EPERM, ERROR | errno.ENOSYS
    steps = [Step(LOAD, ARCHITECTURE), Step(EQUAL, list(MACHINES.values())[column], 1), Step(RETURN, KILL)]
    steps += [Step(LOAD, NUMBER), Step(AT_LEAST, NEWEST + 1, 0, 1), Step(RETURN, absent)]
    for table, answer in ((FORBIDDEN, refused), (MISSING, absent)):
        for numbers in table.values():
            if (number := numbers[column]) is not None:
                steps += [Step(EQUAL, number, 0, 1), Step(RETURN, answer)]
    steps += _where(CLONE[column], 0, [Step(ANY_BIT, NAMESPACES, 1)])
    steps += _where(UNSHARE[column], 0, [Step(ANY_BIT, NAMESPACES | NEW_TIME, 1)])
    steps += _where(IOCTL[column], 1, [Step(EQUAL, TERMINAL[0], 2), Step(EQUAL, TERMINAL[1], 1)])
    steps += _where(SOCKETPAIR[column], 0, [Step(EQUAL, UNIX, 0, 1)])
    for numbers, index in OF_PROCESS.values():
        steps += _where(numbers[column], index, [Step(EQUAL, SUPERVISOR, 1)])
    for numbers, index, flag in HUGE_PAGES.values():
        steps += _where(numbers[column], index, [Step(ANY_BIT, flag, 1)])
    families = [Step(EQUAL, UNIX, 5), Step(EQUAL, INET, 4), Step(EQUAL, INET6, 3)]
    steps += _where(SOCKET[column], 0, [*families, Step(EQUAL, NETLINK, 0, 3), _argument(2), Step(EQUAL, ROUTE, 0, 1)])
    return b"".join(step.packed() for step in [*steps, Step(RETURN, ALLOW)])


def refused_calls(machine: str | None = None) -> dict[str, int]:
    """Return the numbers of the calls that are refused whatever their arguments, by name; on x86-64 also one of x32's.

    Raises:
        InfraError: there is no filter for this machine.
    """
    column = _column(machine or platform.machine())
    numbers = {name: numbers[column] for name, numbers in {**FORBIDDEN, **MISSING, **ALIEN}.items()}
    return {name: number for name, number in numbers.items() if number is not None}


def filter_file(lowest: int) -> int:
    """Return a descriptor of the filter, for one sandbox: its reader starts at the front.

    Args:
        lowest: number that the descriptor may have.

    Raises:
        InfraError: there is no filter for this machine.
    """
    rules = program()
    file = os.memfd_create("agentrl-filter")
    try:
        os.write(file, rules)
        os.lseek(file, 0, os.SEEK_SET)
        return fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, lowest)
    finally:
        os.close(file)


def _column(machine: str) -> int:
    if machine not in MACHINES:
        names = " or ".join(MACHINES)
        raise InfraError(
            f"there is no filter of system calls for {machine}; use a machine with {names}, or containers",
            code="no_seccomp",
        )
    return list(MACHINES).index(machine)


def _argument(index: int) -> Step:
    """Return the step that loads an argument, of which these calls read 32 bits."""
    return Step(LOAD, 16 + 8 * index)


def _where(number: int, argument: int, checks: Sequence[Step]) -> list[Step]:
    """Return a check of one call; its last step goes on for what is allowed, and jumps by 1 for what is refused."""
    inner = [_argument(argument), *checks, Step(RETURN, ALLOW), Step(RETURN, ERROR | errno.EPERM)]
    return [Step(EQUAL, number, 0, len(inner)), *inner]
