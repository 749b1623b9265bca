"""Holds the supervisor inside a rented machine, and carries the calls of connections that may break to it.

Guarantees: a call with an id that was seen runs nothing a second time, and gets the answer of the first, also while that
still runs; so a call whose connection broke can be repeated. Only root can call. When the supervisor ends, so does this
program, and calls fail. It runs as root.

``relay serve FOLDER PROGRAM...`` starts the supervisor by the given words; ``FOLDER`` must not exist. ``relay call
FOLDER ID DONE...`` hands in the frame in the file ``FOLDER/ID``, prints the answer's frame, and lets the answers of the ids
``DONE`` be forgotten. The id 0 has no file: its answer is the supervisor's first, which says that it is ready. ``relay
send FOLDER ID`` hands in a frame that has no answer.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from typing import IO

from agentrl.sandbox.inside.wire import LENGTHS

GONE = 3
START_S = 60.0
POLL_SECONDS = 0.02
MAX_ERRORS = 2000


class Relay:
    """What is known of the calls; shared by threads."""

    def __init__(self, folder: str, supervisor: IO[bytes]) -> None:
        self._folder = folder
        self._supervisor = supervisor
        self._seen = {0}
        self._answers: dict[int, bytes] = {}
        self._changed = threading.Condition()
        self._writing = threading.Lock()

    def read(self, answers: IO[bytes]) -> None:
        """Take the supervisor's answers until it ends."""
        while len(lengths := answers.read(LENGTHS.size)) == LENGTHS.size:
            header, body = LENGTHS.unpack(lengths)
            rest = answers.read(header + body)
            with self._changed:
                self._answers[json.loads(rest[:header])["id"]] = lengths + rest
                self._changed.notify_all()

    def call(self, caller: socket.socket) -> None:
        """Carry one call; the caller may hang up at any time."""
        with caller, caller.makefile("rb") as said:
            call = json.loads(said.readline())
            number = call["id"]
            with self._changed:
                for item in call["done"]:
                    self._answers.pop(item, None)
                first = number not in self._seen
                self._seen.add(number)
            if first:
                self._hand_in(number)
            if not call["wait"]:
                return
            with self._changed:
                self._changed.wait_for(lambda: number in self._answers)
                answer = self._answers[number]
            caller.sendall(answer)

    def _hand_in(self, number: int) -> None:
        path = os.path.join(self._folder, str(number))
        with open(path, "rb") as file:
            request = file.read()
        os.unlink(path)
        with self._writing:
            self._supervisor.write(request)
            self._supervisor.flush()


def serve(folder: str, argv: list[str]) -> int:
    """Run the supervisor and answer calls until it ends."""
    os.umask(0o077)
    os.mkdir(folder)
    path = os.path.join(folder, "socket")
    with open(os.path.join(folder, "errors"), "wb") as errors:
        child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
    assert child.stdin is not None
    assert child.stdout is not None
    relay = Relay(folder, child.stdin)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path + ".new")
    listening.listen(512)
    os.rename(path + ".new", path)
    threading.Thread(target=accept, args=(relay, listening), daemon=True).start()
    relay.read(child.stdout)
    with open(os.path.join(folder, "ended"), "wb"):
        os.unlink(path)
    child.kill()
    child.wait()
    return GONE


def accept(relay: Relay, listening: socket.socket) -> None:
    """Give every caller a thread."""
    while True:
        caller, _ = listening.accept()
        threading.Thread(target=relay.call, args=(caller,), daemon=True).start()


def call(folder: str, number: int, done: list[int], *, wait: bool) -> int:
    """Hand in a call and, with ``wait``, print its answer."""
    caller = socket.socket(socket.AF_UNIX)
    deadline = time.monotonic() + (START_S if number == 0 else 0.0)
    while True:
        try:
            caller.connect(os.path.join(folder, "socket"))
            break
        except OSError:
            if time.monotonic() >= deadline or os.path.exists(os.path.join(folder, "ended")):
                return gone(folder)
            time.sleep(POLL_SECONDS)
    try:
        caller.sendall(json.dumps({"id": number, "done": done, "wait": wait}).encode() + b"\n")
        with caller.makefile("rb") as answers:
            answer = answers.read()
    except OSError:
        return gone(folder)
    if wait and not answer:
        return gone(folder)
    sys.stdout.buffer.write(answer)
    return 0


def gone(folder: str) -> int:
    """Say what the supervisor said last."""
    try:
        with open(os.path.join(folder, "errors"), "rb") as errors:
            sys.stderr.buffer.write(errors.read()[-MAX_ERRORS:])
    except OSError:
        sys.stderr.write("the relay did not start")
    return GONE


def main() -> int:
    """Do what the command line says; return the exit status."""
    what, folder, *rest = sys.argv[1:]
    if what == "serve":
        return serve(folder, rest)
    number, *done = map(int, rest)
    return call(folder, number, done, wait=what == "call")


if __name__ == "__main__":
    ended = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ended)  # threads may still serve callers
