"""Workers of a CPU engine are forks that keep nothing of the server but what it has imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SERVER = """
import json, multiprocessing, signal, sys, tempfile, types
import slime.backends.sglang_utils.forked_workers as forked_workers

engine = types.ModuleType("sglang.srt.entrypoints.engine")
engine._set_envs_and_config = lambda cfg: multiprocessing.set_start_method("spawn", force=True)
for name in ("sglang", "sglang.srt", "sglang.srt.entrypoints"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["sglang.srt.entrypoints"].engine = engine
forked_workers.install()
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
print(json.dumps([here.recv(), tempfile.tempdir]))
worker.join()
"""


def test_a_worker_forgets_what_the_server_set_for_itself(repository: Path) -> None:
    command = [sys.executable, "-c", SERVER]
    done = subprocess.run(command, cwd=repository / "slime", capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [["of the server", None, True], "/of/the/server"]
