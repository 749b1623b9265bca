"""A driver with a policy engine over two machines, which are two Ray nodes with loopback addresses and a logical GPU each.

``python -m tests.helpers.engine_on_two_machines RUN_DIR MODEL SECOND_MODEL`` prints what it finds as JSON, a line at a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import httpx
import psutil
import ray
from safetensors.torch import load_file

from slime.ray.engines import EngineGroup
from slime.ray.environment import forwarded
from slime.ray.placement import create_placement
from slime.ray.ray_start import Part, node_of_cluster
from slime.utils.http_utils import find_available_port
from tests.helpers.arguments import default_args
from tests.helpers.weight_receivers import connected, rank_zero

MACHINES = ("127.0.0.2", "127.0.0.3")
PROMPT = [(37 * position) % 300 for position in range(24)]
STARTED = time.monotonic()


def arguments(run_dir: str, model: str) -> Namespace:
    """Return the arguments of a run with one engine, which has a GPU of each machine."""
    engine = {"rollout_num_gpus": 2, "rollout_num_gpus_per_engine": 2, "num_gpus_per_node": 1, "num_nodes": 2}
    push = {"check_weight_update_equal": True, "update_weight_buffer_size": 1 << 15, "distributed_timeout_minutes": 1}
    alone = {"actor_num_nodes": 0, "actor_num_gpus_per_node": 0, "node_timeout": 120.0, "seed": 1}
    given = {"run_dir": run_dir, "hf_checkpoint": model, "device": "cpu", "sglang_max_total_tokens": 20000}
    return default_args(**engine, **push, **alone, **given)


def say(**facts: Any) -> None:
    """Print a line for the test."""
    print(json.dumps({**facts, "seconds": round(time.monotonic() - STARTED, 1)}), flush=True)


def generate(url: str) -> dict[str, Any]:
    """Ask the engine for 20 tokens."""
    sampling = {"temperature": 0.6, "max_new_tokens": 20, "ignore_eos": True}
    body = {"input_ids": PROMPT, "sampling_params": sampling, "return_logprob": True}
    answer = httpx.post(f"{url}/generate", json=body, timeout=120, trust_env=False).raise_for_status().json()
    logprobs = [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]]
    return {"ids": answer["output_ids"], "logprobs": logprobs, "version": answer["meta_info"]["weight_version"]}


def servers(model: str) -> dict[int, psutil.Process]:
    """The engine's process on each machine."""
    found = {}
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "--node-rank" in words and model in words:
            found[int(words[words.index("--node-rank") + 1])] = process
    return found


def births(processes: dict[int, psutil.Process]) -> list[float]:
    """When the process of each machine was started."""
    return [processes[rank].create_time() for rank in range(len(MACHINES))]


def revived_engines(group: EngineGroup) -> list[int]:
    """Revive until an engine was found dead: a process that is sent SIGKILL runs on for a moment."""
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        if revived := group.revive():
            return revived
        time.sleep(0.05)
    raise TimeoutError("no engine was found dead")


def use_engine(args: Namespace, second: str) -> None:
    """Let the engine generate, take weights, lose its process on the second machine, and do both again."""
    group = EngineGroup(args, create_placement(args), "policy")
    try:
        address = group.finish_start(ray.get(group.start()))
        url = f"http://{address.host}:{address.port}"
        before = servers(args.hf_checkpoint)
        say(what="start", url=url, born=births(before), **generate(url))
        for version, model in (("1", second), ("2", args.hf_checkpoint)):
            with connected(args, group.handles) as sync:
                sync.push(iter(load_file(Path(model) / "model.safetensors").items()), version)
            say(what="push", **generate(url))
            if version == "1":
                before[1].kill()
                revived = revived_engines(group)
                say(what="kill", revived=revived, born=births(servers(args.hf_checkpoint)))
    finally:
        group.stop()
    say(what="stop", left=len(servers(args.hf_checkpoint)))


def main(run_dir: str, model: str, second: str) -> None:
    """Start both machines, and use the engine on them."""
    head = f"{MACHINES[0]}:{find_available_port(host=MACHINES[0])}"
    with contextlib.ExitStack() as stack:
        for address in MACHINES:
            part = Part(head, address, is_head=address == MACHINES[0], num_gpus=1, cpu=True)
            stack.enter_context(node_of_cluster(part, os.environ, Path(run_dir) / f"ray-{address}.log"))
        variables = {"env_vars": forwarded(os.environ, [])}
        ray.init(address=head, _node_ip_address=MACHINES[0], runtime_env=variables)
        stack.callback(ray.shutdown)
        say(what="machines")
        stack.enter_context(rank_zero())
        use_engine(arguments(run_dir, model), second)


if __name__ == "__main__":
    main(*sys.argv[1:])
