"""The promises of `agentrl.sandbox.interface` that hold for every provider, as cases: each takes a started sandbox.

Commands name files by relative paths, so that a stand-in without walls of its own can run them in a folder.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping

import pytest

from agentrl.exceptions import InfraError, InvalidError
from agentrl.sandbox.interface import HOME, Sandbox, SandboxSpec

LONG_SECONDS = 120.0
SPEC = SandboxSpec(env={"FROM_SPEC": "spec", "CHANGED": "spec"})
"""What the sandbox of a case is started with, besides a provider's needs."""
Case = Callable[[Sandbox], Awaitable[None]]


async def text_of(sandbox: Sandbox, line: str, *, env: Mapping[str, str] | None = None, stdin: bytes = b"") -> str:
    """Run a shell line that must succeed; return its output."""
    result = await sandbox.execute(["bash", "-c", line], timeout_s=LONG_SECONDS, env=env, stdin=stdin)
    assert result.exit_code == 0, result
    assert not result.timed_out
    return result.output.decode()


async def ended_by_time(sandbox: Sandbox, line: str) -> None:
    """Run a shell line that prints "on" and never ends, with a time limit that lets it come so far."""
    for limit in (1.0, 5.0, 25.0):
        result = await sandbox.execute(["bash", "-c", line], timeout_s=limit)
        assert result.timed_out
        assert result.exit_code is None
        assert result.seconds >= limit
        if result.output == b"on\n":
            return
    raise AssertionError(result)


async def exit_codes_are_told(sandbox: Sandbox) -> None:
    for code in (0, 1, 77, 255):
        result = await sandbox.execute(["sh", "-c", f"exit {code}"], timeout_s=LONG_SECONDS)
        assert (result.exit_code, result.timed_out, result.output) == (code, False, b"")
        assert 0 <= result.seconds < LONG_SECONDS


async def signals_are_told(sandbox: Sandbox) -> None:
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV):
        result = await sandbox.execute(["sh", "-c", f"kill -{number.value} $$"], timeout_s=LONG_SECONDS)
        assert result.exit_code == -number


async def a_program_that_does_not_exist_fails(sandbox: Sandbox) -> None:
    result = await sandbox.execute(["no-such-program", "--flag"], timeout_s=LONG_SECONDS)
    assert result.exit_code in (126, 127)
    assert b"no-such-program" in result.output


async def arguments_arrive_as_they_are(sandbox: Sandbox) -> None:
    words = ["", " two words ", "$HOME", "`id`", "-n", "--", "ü\n;", "*"]
    result = await sandbox.execute(["printf", "%s|", *words], timeout_s=LONG_SECONDS)
    assert result.output.decode() == "".join(f"{word}|" for word in words)


async def output_has_both_streams_in_order(sandbox: Sandbox) -> None:
    line = "for i in 1 2 3 4 5; do echo out $i; echo err $i >&2; done"
    wanted = "".join(f"out {i}\nerr {i}\n" for i in range(1, 6))
    assert await text_of(sandbox, line) == wanted


async def output_may_be_any_bytes(sandbox: Sandbox) -> None:
    result = await sandbox.execute(["printf", r"\000\377\n\r\001"], timeout_s=LONG_SECONDS)
    assert result.output == b"\x00\xff\n\r\x01"


async def long_output_is_cut_in_the_middle(sandbox: Sandbox) -> None:
    line = "printf BEGIN; head -c 300000 /dev/zero | tr '\\0' x; printf END"
    result = await sandbox.execute(["bash", "-c", line], timeout_s=LONG_SECONDS, most_output=1000)
    assert result.exit_code == 0
    assert len(result.output) == 1000
    assert result.cut_bytes == 300_008 - 1000
    assert result.output.startswith(b"BEGINx")
    assert result.output.endswith(b"xEND")


async def output_that_fits_is_whole(sandbox: Sandbox) -> None:
    result = await sandbox.execute(["bash", "-c", "printf %01000d 7"], timeout_s=LONG_SECONDS, most_output=1000)
    assert (len(result.output), result.cut_bytes) == (1000, 0)


async def a_time_limit_ends_all_that_was_started(sandbox: Sandbox) -> None:
    line = "(trap '' TERM; while :; do date +%s%N >beat; sleep 0.02; done) & until [ -s beat ]; do :; done; echo on; sleep 600"
    await ended_by_time(sandbox, line)
    last = await text_of(sandbox, "cat beat 2>/dev/null || true")
    assert await text_of(sandbox, "sleep 0.3; cat beat 2>/dev/null || true") == last


async def a_time_limit_ends_what_left_its_group(sandbox: Sandbox) -> None:
    line = "setsid sh -c 'while :; do date +%s%N >far; sleep 0.02; done' & until [ -s far ]; do :; done; echo on; sleep 600"
    await ended_by_time(sandbox, line)
    last = await text_of(sandbox, "cat far 2>/dev/null || true")
    assert await text_of(sandbox, "sleep 0.3; cat far 2>/dev/null || true") == last


async def what_is_in_the_background_lives_on(sandbox: Sandbox) -> None:
    line = "(until [ -e go ]; do sleep 0.01; done; echo seen >came) >/dev/null 2>&1 & echo left"
    assert await text_of(sandbox, line) == "left\n"
    assert await text_of(sandbox, "touch go; until [ -s came ]; do sleep 0.01; done; cat came") == "seen\n"


async def a_background_program_does_not_keep_its_command(sandbox: Sandbox) -> None:
    result = await sandbox.execute(["bash", "-c", "sleep 600 & echo done"], timeout_s=LONG_SECONDS)
    assert (result.exit_code, result.output, result.timed_out) == (0, b"done\n", False)


async def stdin_is_read(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 2000
    result = await sandbox.execute(["wc", "-c"], timeout_s=LONG_SECONDS, stdin=data)
    assert result.output.split() == [b"512000"]
    assert await text_of(sandbox, "cat", stdin=b"") == ""
    result = await sandbox.execute(["true"], timeout_s=LONG_SECONDS, stdin=data)
    assert result.exit_code == 0, "a program that reads nothing"


async def the_environment_is_the_spec_and_the_call(sandbox: Sandbox) -> None:
    line = 'echo "$FROM_SPEC,$CHANGED,$FROM_CALL,$HOME,$LANG,${E2B_API_KEY-none},${AGENTRL_KEY-none}"; [ -n "$PATH" ]'
    env = {"CHANGED": "call", "FROM_CALL": "a b\nc"}
    said = await text_of(sandbox, line, env=env)
    assert said == f"spec,call,a b\nc,{HOME},C.UTF-8,none,none\n"
    assert (await text_of(sandbox, line)).startswith("spec,spec,,")
    names = {each.split("=")[0] for each in (await text_of(sandbox, "env")).splitlines()}
    assert names <= {"PATH", "HOME", "LANG", "FROM_SPEC", "CHANGED", "PWD", "SHLVL", "_", "OLDPWD"}


async def the_working_directory_is_asked_for(sandbox: Sandbox) -> None:
    await sandbox.write_file(f"{HOME}/deep/er/name", b"here")
    result = await sandbox.execute(["cat", "name"], timeout_s=LONG_SECONDS, cwd=f"{HOME}/deep/er")
    assert result.output == b"here"


async def a_working_directory_that_does_not_exist_is_refused(sandbox: Sandbox) -> None:
    await sandbox.write_file(f"{HOME}/file", b"")
    for cwd in (f"{HOME}/missing", f"{HOME}/file"):
        with pytest.raises(InvalidError, match="cwd"):
            await sandbox.execute(["true"], timeout_s=LONG_SECONDS, cwd=cwd)


async def no_program_and_no_time_are_refused(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidError):
        await sandbox.execute([], timeout_s=LONG_SECONDS)
    with pytest.raises(InvalidError):
        await sandbox.execute(["true"], timeout_s=0.0)


async def files_are_written_and_read(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 1000
    await sandbox.write_file(f"{HOME}/a/b/c.bin", data)
    assert await sandbox.read_file(f"{HOME}/a/b/c.bin") == data
    await sandbox.write_file(f"{HOME}/a/b/c.bin", b"")
    assert await sandbox.read_file(f"{HOME}/a/b/c.bin") == b""
    await sandbox.write_file("/tmp/other", b"tmp")
    assert await sandbox.read_file("/tmp/other") == b"tmp"
    await sandbox.write_file(f"{HOME}/run.sh", b"#!/bin/sh\necho ran\n", mode=0o755)
    assert await text_of(sandbox, "./run.sh") == "ran\n"


async def a_program_sees_written_files_and_the_reverse(sandbox: Sandbox) -> None:
    await sandbox.write_file(f"{HOME}/in.txt", b"one")
    assert await text_of(sandbox, "cat in.txt; printf two >out.txt") == "one"
    assert await sandbox.read_file(f"{HOME}/out.txt") == b"two"


async def files_outside_are_not_written(sandbox: Sandbox) -> None:
    await text_of(sandbox, "ln -s /etc out; ln -s /proc/self/root root")
    paths = (
        "/etc/new",
        f"{HOME}/../etc/new",
        "relative",
        f"{HOME}/out/new",
        f"{HOME}/root/etc/new",
        "",
        f"{HOME}/a\0b",
    )
    for path in paths:
        with pytest.raises(InvalidError):
            await sandbox.write_file(path, b"x")


async def a_folder_is_no_file(sandbox: Sandbox) -> None:
    await text_of(sandbox, "mkdir folder")
    for path in (f"{HOME}/folder", HOME):
        with pytest.raises(InvalidError):
            await sandbox.write_file(path, b"x")
        with pytest.raises(InvalidError):
            await sandbox.read_file(path)


async def missing_and_large_files_are_refused(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidError, match="missing"):
        await sandbox.read_file(f"{HOME}/missing")
    await sandbox.write_file(f"{HOME}/ten", b"0123456789")
    assert await sandbox.read_file(f"{HOME}/ten", most_bytes=10) == b"0123456789"
    with pytest.raises(InvalidError, match="larger than 9"):
        await sandbox.read_file(f"{HOME}/ten", most_bytes=9)
    await text_of(sandbox, "mkfifo pipe")
    with pytest.raises(InvalidError):
        await sandbox.read_file(f"{HOME}/pipe")


async def several_run_at_a_time(sandbox: Sandbox) -> None:
    """Each waits for the next one's file, so they end only if all run."""
    count = 8
    lines = [f"touch at.{n}; until [ -e at.{(n + 1) % count} ]; do sleep 0.01; done; echo {n}" for n in range(count)]
    said = await asyncio.gather(*(text_of(sandbox, line) for line in lines))
    assert said == [f"{n}\n" for n in range(count)]


async def a_cancelled_command_ends(sandbox: Sandbox) -> None:
    line = "while :; do date +%s%N >pulse; sleep 0.02; done"
    task = asyncio.create_task(sandbox.execute(["bash", "-c", line], timeout_s=600.0))
    await text_of(sandbox, "until [ -s pulse ]; do sleep 0.01; done")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    check = 'while a=$(cat pulse); sleep 0.3; b=$(cat pulse); [ "$a" != "$b" ]; do :; done; echo still'
    assert await text_of(sandbox, check) == "still\n"


async def all_commands_end_and_the_sandbox_serves_on(sandbox: Sandbox) -> None:
    beat = "while :; do date +%s%N >pulse; done"
    await text_of(sandbox, f"setsid bash -c '{beat}' >/dev/null 2>&1 & until [ -s pulse ]; do sleep 0.01; done")
    task = asyncio.create_task(sandbox.execute(["bash", "-c", "touch runs; sleep 600"], timeout_s=600.0))
    await text_of(sandbox, "until [ -e runs ]; do sleep 0.01; done")
    await sandbox.end_commands()
    assert (await task).exit_code is None
    last = await text_of(sandbox, "cat pulse")
    assert await text_of(sandbox, "sleep 0.1; cat pulse") == last


async def a_stopped_sandbox_is_gone(sandbox: Sandbox) -> None:
    await text_of(sandbox, "sleep 600 >/dev/null 2>&1 & :")
    await sandbox.stop()
    await sandbox.stop()
    with pytest.raises(InfraError):
        await sandbox.execute(["true"], timeout_s=LONG_SECONDS)
    with pytest.raises(InfraError):
        await sandbox.write_file(f"{HOME}/x", b"")
    with pytest.raises(InfraError):
        await sandbox.read_file(f"{HOME}/x")


async def a_stop_ends_a_running_command(sandbox: Sandbox) -> None:
    task = asyncio.create_task(sandbox.execute(["bash", "-c", "touch runs; sleep 600"], timeout_s=600.0))
    await text_of(sandbox, "until [ -e runs ]; do sleep 0.01; done")
    await sandbox.stop()
    with pytest.raises(InfraError):
        await task


CASES: list[Case] = [
    all_commands_end_and_the_sandbox_serves_on,
    exit_codes_are_told,
    signals_are_told,
    a_program_that_does_not_exist_fails,
    arguments_arrive_as_they_are,
    output_has_both_streams_in_order,
    output_may_be_any_bytes,
    long_output_is_cut_in_the_middle,
    output_that_fits_is_whole,
    a_time_limit_ends_all_that_was_started,
    a_time_limit_ends_what_left_its_group,
    what_is_in_the_background_lives_on,
    a_background_program_does_not_keep_its_command,
    stdin_is_read,
    the_environment_is_the_spec_and_the_call,
    the_working_directory_is_asked_for,
    a_working_directory_that_does_not_exist_is_refused,
    no_program_and_no_time_are_refused,
    files_are_written_and_read,
    a_program_sees_written_files_and_the_reverse,
    files_outside_are_not_written,
    a_folder_is_no_file,
    missing_and_large_files_are_refused,
    several_run_at_a_time,
    a_cancelled_command_ends,
    a_stopped_sandbox_is_gone,
    a_stop_ends_a_running_command,
]
