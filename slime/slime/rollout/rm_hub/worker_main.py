"""Main program of a grader worker: decide with math-verify whether two mathematical answers are equal.

It reads ``[function, arguments]``, answers ``["done", value]``, and ends with its parent. Guarantee: the kernel ends a
grade that exceeds its time, whatever code it runs (SIGALRM is not handled). Symbolic comparison may take arbitrarily
long, and the library's own limits need the main thread.
"""

from __future__ import annotations

import json
import logging
import resource
import signal
import sys
from multiprocessing.connection import Connection

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

logging.getLogger("math_verify").setLevel(logging.CRITICAL)
logging.getLogger("latex2sympy2_extended").setLevel(logging.CRITICAL)
_CONFIG = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())


def equal_answers(answer: str, labels: list[str]) -> bool:
    """Return whether ``answer`` equals one of ``labels``, as text or as an expression, set, interval or number."""
    text = _plain(answer)
    if not text:
        return False
    if any(text == _plain(label) for label in labels):
        return True
    parsed = _parse(text)
    return bool(parsed) and any(verify(_parse(_plain(label)), parsed, timeout_seconds=0) for label in labels)


def _plain(text: str) -> str:
    return text.strip().strip("$").strip().rstrip(".").strip()


def _parse(text: str) -> list:
    return parse(f"\\boxed{{{text}}}", _CONFIG, fallback_mode="no_fallback", parsing_timeout=0)


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
        except Exception as error:  # noqa: BLE001 - report any grader error to the caller
            answer = ["error", f"{type(error).__name__}: {error}"]
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.send_bytes(json.dumps(answer).encode())


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
