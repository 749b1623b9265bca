"""A real engine whose two ranks are on two machines, two loopback addresses here: exact, given weights, started again as a whole.

That its actors lie on several machines of a Ray cluster is in ``tests/unit/ray/test_engine_machines.py``, and that they find each other
there in ``tests/integration/test_placement_ray.py``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import torch
from safetensors.torch import load_file

from benchmarks.weight_receiver import local_handle
from lab.testkit.processes import GONE_SECONDS, assert_all_gone
from slime.args import Arguments
from slime.arguments.placement import EngineSpec
from slime.backends.sglang_utils.engine import SGLangEngine
from slime.backends.sglang_utils.engine_process import EngineProcess
from slime.weight_sync.remote_engine import RemoteProcess
from tests.helpers.tolerance import MODEL, tolerance
from tests.helpers.weight_receivers import connected, rank_zero

HOSTS = ("127.0.0.2", "127.0.0.3")
PROMPT = [(37 * position) % 300 for position in range(24)]
TEMPERATURE = 0.6
TOLERANCE = tolerance(10.0, roundings=MODEL)
ANSWER_SECONDS = 120.0


class Machines:
    """The engine, its process on the other machine, and every process that was seen of them."""

    def __init__(self, run_dir: Path, model: Path) -> None:
        push = {"check_weight_update_equal": True, "update_weight_buffer_size": 1 << 15}
        given = {
            "run_dir": str(run_dir),
            "hf_checkpoint": str(model),
            "device": "cpu",
            "train_dtype": "float32",
            "sglang_max_total_tokens": 20000,
        }
        self.args = Arguments(**push, **given, seed=1)
        specs = [EngineSpec("policy", 0, 2, (0,), host, nodes=2, node_rank=rank) for rank, host in enumerate(HOSTS)]
        self.other = EngineProcess(self.args, specs[1])
        self.engine = SGLangEngine(self.args, specs[0], others=[RemoteProcess(local_handle(self.other).actor)])
        self.family: set[psutil.Process] = set()

    def roots(self) -> list[psutil.Process]:
        """The process that was started on each machine."""
        found = [psutil.Process(part.pid) for part in (self.engine.process, self.other) if part.pid]
        self.family.update(found, *(process.children(recursive=True) for process in found))
        return found

    def kill_other(self) -> None:
        """Kill the process on the other machine; returns when it has ended, which its threads take a moment for."""
        assert self.other.child is not None
        psutil.Process(self.other.child.pid).kill()
        self.other.child.wait(GONE_SECONDS)

    def push(self, model: Path, version: str) -> None:
        """Join the engine's ranks, and give them the weights of a checkpoint."""
        with connected(self.args, [local_handle(self.engine)]) as sync:
            sync.push(iter(load_file(model / "model.safetensors").items()), version)

    def error(self, model: Any, version: str) -> float:
        """Largest difference of the logprobs of 20 tokens to a float32 forward of ``model``; they must be of ``version``."""
        sampling = {"temperature": TEMPERATURE, "max_new_tokens": 20, "ignore_eos": True}
        body = {"input_ids": PROMPT, "sampling_params": sampling, "return_logprob": True}
        response = httpx.post(f"{self.engine.url()}/generate", json=body, timeout=ANSWER_SECONDS, trust_env=False)
        answer = response.raise_for_status().json()
        assert answer["meta_info"]["weight_version"] == version
        ids = answer["output_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([PROMPT + ids])).logits[0].float() / TEMPERATURE
        rows = logits.log_softmax(-1)[len(PROMPT) - 1 : -1]
        expected = rows.gather(-1, torch.tensor(ids)[:, None])[:, 0]
        logprobs = [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]]
        return float((expected - torch.tensor(logprobs)).abs().max())

    def left(self) -> list[str]:
        """Shared memory of the processes that were seen: SGLang's has the number of its process in its name."""
        numbers = {str(process.pid) for process in self.family}
        return [name for name in os.listdir("/dev/shm") if name.startswith("sgl_shm") and numbers & {*name.split("_")}]


@contextlib.contextmanager
def two_machines(run_dir: Path, model: Path) -> Iterator[Machines]:
    """An engine on two machines; all of it is gone when the block ends, and must be."""
    machines = Machines(run_dir, model)
    try:
        machines.engine.start()
        machines.roots()
        yield machines
    finally:
        machines.engine.stop()
    assert_all_gone(machines.family)
    assert not machines.left()


def test_an_engine_on_two_machines(
    tmp_path: Path, random_models: list[Path], references: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with rank_zero(), two_machines(tmp_path, random_models[0]) as machines:
        engine, first = machines.engine, machines.roots()
        url = engine.url()
        assert url.startswith(f"http://{HOSTS[0]}:")
        assert machines.error(references[0], "default") < TOLERANCE
        machines.push(random_models[1], "1")
        assert machines.error(references[1], "1") < TOLERANCE
        assert not engine.restart_if_dead(hold=True)
        machines.kill_other()
        assert engine.restart_if_dead(hold=True)
        assert_all_gone(machines.family)
        second = machines.roots()
        assert len({*first, *second}) == 4, "both processes are new"
        assert (engine.url(), engine.starts()) == (url, 2)
        machines.push(random_models[0], "2")
        assert machines.error(references[0], "2") < TOLERANCE
    logs = sorted(path.name for path in (tmp_path / "logs").iterdir())
    assert logs == ["engine-policy-0-node-1.log", "engine-policy-0.log"]
