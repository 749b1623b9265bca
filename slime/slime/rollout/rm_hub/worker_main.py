"""Main program of a grader worker: calls the functions of one module for another process.

It reads ``[function, arguments]``, answers ``["done", value]``, and ends with its parent. Guarantee: the kernel ends a
call that exceeds its time, whatever code it runs (SIGALRM is not handled).
"""

from __future__ import annotations

import importlib
import json
import resource
import signal
import sys
from multiprocessing.connection import Connection


def main(descriptor: int, seconds: float, memory: int, functions: str) -> None:
    """Call functions of the module ``functions`` until the connection closes."""
    module = importlib.import_module(functions)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    connection = Connection(descriptor)
    connection.send_bytes(b'"ready"')
    while True:
        try:
            name, arguments = json.loads(connection.recv_bytes())
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            answer = ["done", getattr(module, name)(**arguments)]
        except Exception as error:  # noqa: BLE001 - report any error to the caller
            answer = ["error", f"{type(error).__name__}: {error}"]
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.send_bytes(json.dumps(answer).encode())


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
