"""Workers of a CPU engine are forks that keep nothing of the server but what it has imported, unless it has threads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SERVER = """
import json, multiprocessing, os, signal, sys, tempfile, threading, types
from groundwork.process import LIFELINE_VARIABLE, watch_lifeline
read_end, write_end = os.pipe()
os.environ[LIFELINE_VARIABLE] = str(read_end)
watch_lifeline()
from slime.backends.sglang_utils import server

engine = types.ModuleType("sglang.srt.entrypoints.engine")
engine._set_envs_and_config = lambda cfg: multiprocessing.set_start_method("spawn", force=True)
for name in ("sglang", "sglang.srt", "sglang.srt.entrypoints"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["sglang.srt.entrypoints"].engine = engine
server.fork_workers()
engine._set_envs_and_config("cfg")
imported = "of the server"
tempfile.tempdir = "/of/the/server"
for number in (signal.SIGQUIT, signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: None)

def work(end):
    own = [signal.getsignal(number) for number in (signal.SIGQUIT, signal.SIGTERM)]
    default = own == [signal.SIG_DFL] * 2 and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    end.send([imported, tempfile.tempdir, default])

here, there = multiprocessing.Pipe()
worker = multiprocessing.Process(target=work, args=(there,))
worker.start()
there.close()
found = here.recv()
worker.join()
kinds = [type(worker._popen).method]
end = threading.Event()
threading.Thread(target=end.wait).start()
for _ in range(2):
    worker = multiprocessing.Process(target=sys.exit, args=(3,))
    worker.start()
    worker.join()
    kinds.append([type(worker._popen).method, worker.exitcode])
    end.set()
print(json.dumps([found, tempfile.tempdir, kinds]))
"""


@pytest.fixture(scope="module")
def server(repository: Path) -> tuple[list[Any], str]:
    """What the server says of its workers, and its log."""
    command = [sys.executable, "-c", SERVER]
    done = subprocess.run(command, cwd=repository / "slime", capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_a_worker_forgets_what_the_server_set_for_itself(server: tuple[list[Any], str]) -> None:
    worker, folder, _ = server[0]
    assert [worker, folder] == [["of the server", None, True], "/of/the/server"]


def test_a_server_with_threads_forks_nothing(server: tuple[list[Any], str]) -> None:
    """Nor later: the thread has ended by then. The lifeline does not count."""
    (_, _, kinds), log = server
    assert kinds == ["fork", ["spawn", 3], ["spawn", 3]]
    assert log.count("its workers are spawned, not forked") == 1
