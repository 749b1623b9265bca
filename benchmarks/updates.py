"""What does a weight update cost a waiting client? Real SGLang, real gateway, weights swapped under streams.

`python -m benchmarks.updates [--quick] [--updates N] [--clients 1,4,12] --json FILE`. A model with random weights (a few MB) on the
CPU; a stand-in for trainer rank 0 sends the buckets over gloo with the same calls as the trainer. Figures are recorded, not
judged; exit status 1 when a request was refused or broke off.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from safetensors.torch import load_file
from transformers import AutoTokenizer

from benchmarks.fault_parts.checks import write_json
from benchmarks.machine import describe_machine
from benchmarks.update_load import swap_under_load
from groundwork.command_line import output_file
from lab.testkit import tiny_random
from lab.testkit.engine import serve
from lab.testkit.live_engine import WeightSender, engine_arguments, live_engine
from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway.app import create_app
from openclaw.gateway.chat import ChatService
from openclaw.ledger.store import Ledger
from slime.backends.sglang_utils.engine import SGLangEngine

MAX_TOKENS = 120


async def measure(engine: SGLangEngine, models: list[Path], folder: Path, clients: int, updates: int) -> dict[str, Any]:
    """Return the summary of one load."""
    config = RuntimeConfig(
        policy_url=engine.url(), tokenizer=str(models[0]), context_length=2048, prm_max_new_tokens=512
    )
    ledger, registry = Ledger(folder / f"{clients}.sqlite"), CollectorRegistry()
    service = ChatService(config, AutoTokenizer.from_pretrained(models[0]), ledger, registry)
    sender = WeightSender(engine, f"updates-{clients}")
    weights = [load_file(model / "model.safetensors") for model in models]
    async with serve(create_app(service, registry)) as url:
        observed = await swap_under_load(
            url, sender, weights, updates=updates, clients=clients, max_tokens=MAX_TOKENS, seed=clients
        )
    sender.close()
    ledger.close()
    return {"clients": clients, **observed.summary(), "words": sorted(set(observed.refused))[:5]}


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.updates", description=__doc__)
    parser.add_argument("--updates", type=int, default=40, help="per load (default: %(default)s)")
    parser.add_argument("--clients", default="1,4,12", help="streams at once, comma-separated (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one load, five updates: checks that it runs")
    parser.add_argument("--json", required=True, type=output_file, help="file for the figures")
    arguments = parser.parse_args()
    loads = [int(text) for text in arguments.clients.split(",")]
    updates = arguments.updates
    if arguments.quick:
        loads, updates = loads[:1], 5
    with tempfile.TemporaryDirectory(prefix="updates-") as name:
        folder = Path(name)
        models = [tiny_random.build(folder / f"model-{seed}", seed=seed) for seed in (11, 12)]
        with live_engine(engine_arguments(models[0], folder / "run")) as engine:
            results = [asyncio.run(measure(engine, models, folder, clients, updates)) for clients in loads]
    write_json(arguments.json, {"machine": describe_machine(), "loads": results})
    for result in results:
        print(result)
    return int(any(result["refused"] for result in results))


if __name__ == "__main__":
    sys.exit(main())
