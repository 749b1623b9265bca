"""What does an adapter per person cost a reply? A real engine on the CPU with the shipped model.

`python -m benchmarks.adapters [--people N] [--rounds N] --json FILE`. Each round asks, one request at a time and then by as many
clients at once as there are people, first as one person, then as all of them in turn; so load that others put on the machine falls
on both. Given are the milliseconds to the first token, those of a first request after an adapter had left, and the processes'
memory. Exit status 1 when a request was refused or another's adapter answered.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import psutil
import torch
from safetensors.torch import save_file

from benchmarks.fault_parts.checks import write_json
from benchmarks.gate import spread
from benchmarks.machine import describe_machine
from groundwork.command_line import output_file
from groundwork.people import mark_of, request_name
from lab.testkit.live_engine import engine_arguments, live_engine
from lab.testkit.served_gateway import MODEL
from slime.args import Arguments
from slime.utils.http_utils import stream_lines
from slime.weight_sync import people
from slime.weight_sync.adapter import adapter_config

RANK = 8
PROMPT_TOKENS, REPLY_TOKENS = 64, 24
REQUESTS = 4
"""Of each person in a round."""
WAIT_SECONDS = 120.0


def write_people(args: Arguments, count: int) -> list[str]:
    """Write and publish a random adapter for each of ``count`` people, and return the people."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    persons = [f"person {number}" for number in range(count)]
    for number, person in enumerate(persons):
        torch.manual_seed(number)
        tensors = {}
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear) and name.rpartition(".")[2] in args.lora_target_modules:
                place = f"base_model.model.{name}"
                tensors[f"{place}.lora_A.weight"] = torch.randn(RANK, module.in_features) * 0.05
                tensors[f"{place}.lora_B.weight"] = torch.randn(module.out_features, RANK) * 0.05
        name = people.adapter_name(1, "0123abcd", number, mark_of(person))
        folder = people.folder_of(people.people_folder(args.run_dir), name)
        folder.mkdir(parents=True)
        save_file(tensors, folder / people.WEIGHTS)
        (folder / people.CONFIG).write_text(json.dumps(adapter_config(args)))
        people.publish(args.run_dir, name)
    return persons


class Clients:
    """Asks one engine, and counts what went wrong."""

    def __init__(self, url: str) -> None:
        """Ask the engine at ``url``."""
        self._client = httpx.AsyncClient(base_url=url, timeout=WAIT_SECONDS, trust_env=False)
        self._source = random.Random(1)
        self.asked = self.wrong = 0

    async def first_token(self, person: str) -> float:
        """Return the milliseconds to the first token of a reply to a new prompt, and read the reply to its end."""
        body = {
            "input_ids": [self._source.randrange(3, 1000) for _ in range(PROMPT_TOKENS)],
            "sampling_params": {"max_new_tokens": REPLY_TOKENS, "ignore_eos": True},
            "return_logprob": True,
            "stream": True,
            "lora_path": request_name(person),
        }
        self.asked += 1
        start, first, event = time.perf_counter(), None, ""
        async with self._client.stream("POST", "/generate", json=body) as response:
            async for line in stream_lines(response):
                if line.startswith("data: {"):
                    first, event = first or time.perf_counter(), line
        adapter = str(json.loads(event.removeprefix("data: ")).get("meta_info", {}).get("adapter"))
        self.wrong += not adapter.endswith(f"-{mark_of(person)}")
        return 1000 * ((first or time.perf_counter()) - start)

    async def in_turn(self, persons: Sequence[str]) -> list[float]:
        """Ask as each of ``persons``, one after the other."""
        return [await self.first_token(person) for person in persons]

    async def at_once(self, persons: Sequence[str]) -> list[float]:
        """Ask as each of ``persons`` at once, `REQUESTS` times."""
        found = await asyncio.gather(*(self.in_turn([person] * REQUESTS) for person in persons))
        return [value for values in found for value in values]

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


async def measured(url: str, persons: list[str], rounds: int) -> tuple[dict[str, list[float]], Clients]:
    """Return the milliseconds to the first token of each way."""
    clients = Clients(url)
    ways: dict[str, list[float]] = {"first request of each": await clients.in_turn(persons)}
    one = persons[:1] * len(persons)
    await clients.at_once(persons)
    for _ in range(rounds):
        for name, asked in (("one", one), ("all", persons)):
            ways.setdefault(f"{name}, one request at a time", []).extend(await clients.in_turn(asked * REQUESTS))
        for name, asked in (("one", one), ("all", persons)):
            ways.setdefault(f"{name}, {len(persons)} at once", []).extend(await clients.at_once(asked))
    await clients.close()
    return ways, clients


def megabytes(pid: int) -> int:
    """Return the memory that only an engine's processes have."""
    server = psutil.Process(pid)
    return sum(process.memory_full_info().uss for process in [server, *server.children(recursive=True)]) >> 20


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adapters", description=__doc__)
    parser.add_argument("--people", type=int, default=16, help="people with an adapter (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (default: %(default)s)")
    parser.add_argument("--json", required=True, type=output_file, help="file for the figures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="adapters-") as name:
        lora = {"update_weight_mode": "adapter", "use_lora": True, "adapter_per_person": True}
        lora |= {"lora_rank": RANK, "lora_alpha": 2 * RANK, "check_weight_update_equal": False}
        args = Arguments.of(vars(engine_arguments(MODEL, Path(name))) | lora)
        persons = write_people(args, options.people)
        with live_engine(args) as engine:
            pid = engine.status()["pid"]
            before = megabytes(pid)
            ways, clients = asyncio.run(measured(engine.url(), persons, options.rounds))
            memory = {"before": before, "after": megabytes(pid)}
    found = {
        "milliseconds to the first token": {way: spread(values) for way, values in ways.items()},
        "MB of the engine": memory,
        "requests": clients.asked,
        "wrong": clients.wrong,
    }
    write_json(options.json, {"machine": describe_machine(), "people": options.people, **found})
    print(json.dumps(found, indent=1))
    return int(clients.wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
