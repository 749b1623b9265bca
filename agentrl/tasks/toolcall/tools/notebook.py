"""Runs pieces of Python one after another in one process, inside the sandbox; its text is passed to ``python3 -c``.

``serve SOCKET`` is the process that keeps the variables. ``run SOCKET`` hands in the piece on stdin and prints what it wrote. Python's
standard library only, 3.8 or newer. Both belong to the agent: nothing here is trusted outside of the sandbox.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import traceback

START_S = 20.0
POLL_SECONDS = 0.02
CHUNK = 1 << 16


def serve(path: str) -> None:
    """Answer one piece at a time, for ever."""
    os.setsid()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path + ".new")
    listening.listen(8)
    with open(path + ".pid", "w") as file:
        file.write(str(os.getpid()))
    os.rename(path + ".new", path)
    names = {"__name__": "__main__"}
    # A piece that reads gets nothing.
    sys.stdin.close()
    while True:
        caller, _ = listening.accept()
        with caller.makefile("rb") as said:
            piece = said.read().decode(errors="replace")
        os.dup2(caller.fileno(), 1)
        os.dup2(caller.fileno(), 2)
        try:
            exec(compile(piece, "<code>", "exec"), names)
        except SystemExit:
            pass
        except BaseException:  # noqa: BLE001 - whatever a piece raises is what it wrote
            kind, error, trace = sys.exc_info()
            traceback.print_exception(kind, error, trace.tb_next if trace else None)
        sys.stdout.flush()
        sys.stderr.flush()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        os.close(null)
        # What a piece left in the background may still hold the connection.
        caller.shutdown(socket.SHUT_RDWR)
        caller.close()


def run(path: str) -> None:
    """Hand a piece in; the process may still be starting."""
    piece = sys.stdin.buffer.read()
    caller = socket.socket(socket.AF_UNIX)
    deadline = time.monotonic() + START_S
    while True:
        try:
            caller.connect(path)
            break
        except OSError:
            if time.monotonic() > deadline:
                sys.exit("the notebook did not start")
            time.sleep(POLL_SECONDS)
    caller.sendall(piece)
    caller.shutdown(socket.SHUT_WR)
    while data := caller.recv(CHUNK):
        os.write(1, data)


if __name__ == "__main__":
    {"serve": serve, "run": run}[sys.argv[1]](sys.argv[2])
