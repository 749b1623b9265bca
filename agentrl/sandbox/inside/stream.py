"""Runs a program whose stdin and stdout are a connection to a door of the sandbox: ``PORT PROGRAM...``.

Guarantee: the program's stderr goes to this one's, and both end together. Python's standard library only.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress

CHUNK = 1 << 16


def main() -> int:
    """Connect, start the program and carry bytes until it ends; return its exit status."""
    port, *argv = sys.argv[1:]
    connection = socket.create_connection(("127.0.0.1", int(port)))
    program = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert program.stdin is not None
    assert program.stdout is not None
    threading.Thread(target=carry_in, args=(connection, program), daemon=True).start()
    with suppress(OSError):
        while data := os.read(program.stdout.fileno(), CHUNK):
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
    return program.wait()


def carry_in(connection: socket.socket, program: subprocess.Popen) -> None:
    """Carry what the host says; its end is the program's end of input."""
    assert program.stdin is not None
    with suppress(OSError):
        while data := connection.recv(CHUNK):
            program.stdin.write(data)
            program.stdin.flush()
    with suppress(OSError):
        program.stdin.close()


if __name__ == "__main__":
    sys.exit(main())
