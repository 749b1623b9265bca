"""The filter of system calls, run as the kernel runs it, on both architectures."""

from __future__ import annotations

import errno
import os
import struct

import pytest

from agentrl.exceptions import InfraError
from agentrl.sandbox import seccomp
from agentrl.sandbox.seccomp import MACHINES, NAMESPACES, NEWEST, filter_file, program, refused_calls

ALLOWED, KILLED = "allowed", "killed"
EPERM, ENOSYS = errno.EPERM, errno.ENOSYS
NAMES = list(MACHINES)
NEW_USER, THREAD, FORK = 0x10000000, 0x3D0F00, 17 | 0x01200000
# What programs live of: read, write, mmap, futex, execve, openat, getrandom, memfd_create, ptrace, pidfd_open, seccomp, wait4.
ORDINARY = {
    "x86_64": (0, 1, 9, 202, 59, 257, 318, 319, 101, 434, 317, 61),
    "aarch64": (63, 64, 222, 98, 221, 56, 278, 279, 117, 434, 277, 260),
}


def run(machine: str, number: int, *arguments: int, architecture: int | None = None) -> str | int:
    """Return what the kernel does with a call: the errno of a refusal, or a word."""
    data = struct.pack("=IIQ", number & 0xFFFFFFFF, architecture or MACHINES[machine], 0)
    data += struct.pack("=6Q", *(each & 0xFFFFFFFFFFFFFFFF for each in (*arguments, *[0] * 6)[:6]))
    steps = list(struct.iter_unpack("=HBBI", program(machine)))
    at = loaded = 0
    while True:
        code, then, otherwise, value = steps[at]
        at += 1
        if code == seccomp.LOAD:
            (loaded,) = struct.unpack_from("=I", data, value)
        elif code == seccomp.RETURN:
            return {seccomp.ALLOW: ALLOWED, seccomp.KILL: KILLED}.get(value) or value & 0xFFFF
        else:
            holds = {seccomp.EQUAL: loaded == value, seccomp.AT_LEAST: loaded >= value}
            at += then if holds.get(code, bool(loaded & value)) else otherwise


@pytest.mark.parametrize("machine", NAMES)
def test_what_the_whole_machine_shares_is_refused(machine: str) -> None:
    column = NAMES.index(machine)
    for table, wanted in ((seccomp.FORBIDDEN, EPERM), (seccomp.MISSING, ENOSYS)):
        for name, numbers in table.items():
            number = numbers[column]
            assert number is None or run(machine, number) == wanted, name
    assert len(refused_calls(machine)) > 45
    assert {run(machine, number) for number in refused_calls(machine).values()} == {EPERM, ENOSYS}


@pytest.mark.parametrize("machine", NAMES)
def test_everything_else_is_allowed(machine: str) -> None:
    refused = set(refused_calls(machine).values())
    special = {each[NAMES.index(machine)] for each in (seccomp.SOCKET, seccomp.SOCKETPAIR)}
    for number in set(range(NEWEST + 1)) - refused - special:
        assert run(machine, number) == ALLOWED, number
    assert not refused & set(ORDINARY[machine])


@pytest.mark.parametrize("machine", NAMES)
@pytest.mark.parametrize("number", [NEWEST + 1, 0x40000000, 0x40000000 | 250, 0xFFFFFFFF, 0x80000001])
def test_calls_of_another_convention_or_a_newer_kernel_do_not_exist(machine: str, number: int) -> None:
    assert run(machine, number) == ENOSYS


@pytest.mark.parametrize("machine", NAMES)
@pytest.mark.parametrize("other", [0x40000003, 0x40000028, 0xC00000F3, 0])
def test_another_architecture_is_killed(machine: str, other: int) -> None:
    assert run(machine, 1, architecture=other or MACHINES[NAMES[1 - NAMES.index(machine)]]) == KILLED


@pytest.mark.parametrize("machine", NAMES)
def test_sockets_are_of_a_few_families(machine: str) -> None:
    column = NAMES.index(machine)
    wanted = {1, 2, 10, 16}
    for family in (*range(-1, 64), 1 << 32 | 40):
        expected = ALLOWED if family & 0xFFFFFFFF in wanted else EPERM
        assert run(machine, seccomp.SOCKET[column], family, 1, 0) == expected, family
        pair = ALLOWED if family == 1 else EPERM
        assert run(machine, seccomp.SOCKETPAIR[column], family, 1, 0) == pair, family
    for protocol in range(1, 40):
        assert run(machine, seccomp.SOCKET[column], 16, 3, protocol) == EPERM
        assert run(machine, seccomp.SOCKET[column], 2, 1, protocol) == ALLOWED


@pytest.mark.parametrize("machine", NAMES)
def test_processes_start_but_no_namespace_does(machine: str) -> None:
    column = NAMES.index(machine)
    for flags in (FORK, THREAD, 17, 0x4000 | 0x100 | 17):
        assert run(machine, seccomp.CLONE[column], flags) == ALLOWED
    for bit in (0x20000, 0x2000000, 0x4000000, 0x8000000, NEW_USER, 0x20000000, 0x40000000):
        assert bit & NAMESPACES
        assert run(machine, seccomp.CLONE[column], FORK | bit) == EPERM
        assert run(machine, seccomp.UNSHARE[column], bit) == EPERM
    assert run(machine, seccomp.UNSHARE[column], 0x80) == EPERM
    assert run(machine, seccomp.UNSHARE[column], 0x400) == ALLOWED


@pytest.mark.parametrize("machine", NAMES)
def test_nothing_is_typed_into_a_terminal(machine: str) -> None:
    number = seccomp.IOCTL[NAMES.index(machine)]
    for request in (0x5412, 0x541C, 1 << 32 | 0x5412):
        assert run(machine, number, 0, request) == EPERM
    for request in (0x5401, 0x5413, 0x5430, 0x80045430):
        assert run(machine, number, 0, request) == ALLOWED


@pytest.mark.parametrize("machine", NAMES)
def test_limits_and_scheduling_of_the_supervisor_stay(machine: str) -> None:
    for name, (numbers, index) in seccomp.OF_PROCESS.items():
        for process, expected in ((0, ALLOWED), (1, EPERM), (1 << 32 | 1, EPERM), (2, ALLOWED), (257, ALLOWED)):
            assert run(machine, numbers[NAMES.index(machine)], *[0] * index, process) == expected, name


@pytest.mark.parametrize("machine", NAMES)
def test_huge_pages_are_refused(machine: str) -> None:
    for name, (numbers, index, flag) in seccomp.HUGE_PAGES.items():
        for flags, expected in ((0, ALLOWED), (flag, EPERM), (flag | 3, EPERM), (3, ALLOWED), (0x20022, ALLOWED)):
            assert run(machine, numbers[NAMES.index(machine)], *[0] * index, flags) == expected, name


def test_another_machine_has_no_filter() -> None:
    with pytest.raises(InfraError, match="no filter of system calls for riscv64; use a machine with x86_64 or aarch64"):
        program("riscv64")


def test_its_descriptor_is_none_of_those_that_have_a_meaning() -> None:
    """A server with a hundred open files gave it the number of a control group's, which then took its place."""
    file = filter_file(103)
    try:
        assert file >= 103
        assert os.read(file, 1 << 16) == program()
        assert not os.get_inheritable(file)
    finally:
        os.close(file)
