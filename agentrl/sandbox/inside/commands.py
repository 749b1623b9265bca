"""How a command starts, and the keeper that looks after what it leaves.

The keeper is a fork of the supervisor that adopts the command's orphans, so that every descendant has it above. It lives as
long as something is below it. Guarantee: a command gets three descriptors and nothing else of the supervisor.
"""

from __future__ import annotations

import os
import resource
import signal
import struct

from agentrl.sandbox.inside.kernel import SET_CHILD_SUBREAPER, close_all_but, enter, prctl

STATUS = struct.Struct(">i")
NICENESS = 10
NOT_STARTED = 126
# A process that cannot be traced cannot write its own score, so a shell does it after exec: memory runs out for commands first.
COMMAND = ("/bin/sh", "-c", 'echo 1000 2>/dev/null >/proc/self/oom_score_adj; exec "$@"', "sh")


def keep(
    argv: list[str],
    env: dict[str, str],
    cwd: str,
    ends: tuple[int, int, int],
    limits: dict[str, int],
    groups: list[int],
) -> None:
    """Be the keeper of a command: start it in its control groups, report how it ended, and stay until nothing is below."""
    stdin, output, report = ends
    try:
        enter(groups)
        close_all_but(ends)
        prctl(SET_CHILD_SUBREAPER, 1)
        child = os.fork()
    except OSError as error:
        os.write(output, f"{argv[0]}: cannot start: {error.strerror}\n".encode())
        os.write(report, STATUS.pack(NOT_STARTED << 8))
        return
    if child == 0:
        start(argv, env, cwd, stdin, output, limits)
    os.close(stdin)
    os.close(output)
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            return
        if pid == child:
            os.write(report, STATUS.pack(status))


def start(argv: list[str], env: dict[str, str], cwd: str, stdin: int, output: int, limits: dict[str, int]) -> None:
    """Become the command, in a session and process group of its own."""
    try:
        os.setsid()
        os.dup2(stdin, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.nice(NICENESS)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for name, most in limits.items():
            resource.setrlimit(getattr(resource, name), (most, most))
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(cwd)
        os.execve(COMMAND[0], [*COMMAND, *argv], env)
    except (OSError, ValueError) as error:
        os.write(2, f"{argv[0]}: cannot start: {error}\n".encode())
    finally:
        os._exit(NOT_STARTED)
