"""The program of a grader worker: it reads ``[function, arguments]``, answers ``["done", value]``, and ends with its parent.

Guarantee: a grade that outlasts its time is ended by the kernel (SIGALRM is not handled), whatever code it is in.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from multiprocessing.connection import Connection

from slime.rollout.rm_hub.math_equal import equal_answers

FUNCTIONS = {"equal_answers": equal_answers}


def main(descriptor: int, seconds: float, memory: int) -> None:
    """Grade until the connection closes."""
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
            answer = ["done", FUNCTIONS[name](**arguments)]
        except Exception as error:  # noqa: BLE001 - whatever a grader raises is the caller's to see
            answer = ["error", f"{type(error).__name__}: {error}"]
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.send_bytes(json.dumps(answer).encode())


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
