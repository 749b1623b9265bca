"""Engines of a rollout function without a network: the shared HTTP client answers from a script.

Guarantees: the wire format of `/generate` (not streamed), `/abort_request`, `/v1/loads`, `/workers` and `/model_info`;
logprobs are those of `slime.contract.engine`, the experts of a token those of ``experts(version, place)``. Tests set the public attributes between and during requests.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np

from slime.args import Arguments
from slime.contract.engine import logprob_of
from slime.rollout.data_source import RolloutDataSourceWithBuffer
from slime.rollout.generation import GenerateState
from slime.utils import http_utils
from slime.utils.misc import SingletonMeta

if TYPE_CHECKING:
    import pytest

REPLY = (1, 2, 3)
PROMPT = "def f(x):"
PROMPTS = 50


class RolloutEngine:
    """One engine behind the shared client; see the module."""

    def __init__(self, reply: Sequence[int] = REPLY) -> None:
        self.reply = list(reply)
        self.version = "4"
        self.prompt_tokens: int | None = None
        self.requests: list[dict[str, Any]] = []
        self.headers: list[httpx.Headers] = []
        self.running = 0
        self.aborts = 0
        self.holds: Callable[[int], bool] = lambda number: False
        self.held_tokens = 1
        self.turns: Callable[[int], int] = lambda number: 1
        self.cut: list[int] = []
        self.spans: list[dict[str, Any]] | None = None
        self.experts: Callable[[str, int], list[list[int]]] | None = None
        self._abort = asyncio.Event()

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer one request of the client."""
        match request.url.path:
            case "/generate":
                return httpx.Response(200, json=await self._generate(request))
            case "/abort_request":
                self.aborts += 1
                self._abort.set()
                self._abort = asyncio.Event()
                return httpx.Response(200, json={})
            case "/v1/loads":
                return httpx.Response(200, json={"loads": [{"num_running_reqs": self.running, "num_waiting_reqs": 0}]})
            case "/model_info":
                return httpx.Response(200, json={"weight_version": self.version})
        return httpx.Response(404, text="no such route")

    async def _generate(self, request: httpx.Request) -> dict[str, Any]:
        payload = json.loads(request.content)
        number = len(self.requests)
        self.requests.append(payload)
        self.headers.append(request.headers)
        self.running += 1
        try:
            done = 0 if self.prompt_tokens is None else len(payload["input_ids"]) - self.prompt_tokens
            ids = self.reply[done:]
            finish: dict[str, Any] = {"type": "stop"}
            version = self.version
            for _ in range(self.turns(number)):
                await asyncio.sleep(0)
            if self.holds(number):
                await self._abort.wait()
                ids, finish = ids[: self.held_tokens], {"type": "abort", "message": "Abort in waiting queue"}
            elif self.cut and self.cut[0] < len(ids):
                ids, finish = ids[: self.cut.pop(0)], {"type": "abort", "message": "aborted"}
            limit = payload["sampling_params"]["max_new_tokens"]
            if len(ids) > limit:
                ids, finish = ids[:limit], {"type": "length", "length": limit}
            meta: dict[str, Any] = {"finish_reason": finish, "weight_version": version}
            if ids:  # an engine that sampled nothing sends no logprobs
                entries = [[logprob_of(done + n, token), token, None] for n, token in enumerate(ids)]
                meta["output_token_logprobs"] = entries
            if payload.get("return_routed_experts") and self.experts and not self.holds(number):
                places = range(payload["routed_experts_start_len"], len(payload["input_ids"]) + len(ids) - 1)
                rows = np.array([self.experts(version, place) for place in places], dtype="<i4")
                meta["routed_experts"] = base64.b64encode(rows.tobytes()).decode()
            if self.spans:
                meta["weight_versions"] = self.spans
            return {"text": "x" * len(ids), "meta_info": meta}
        finally:
            self.running -= 1


def prompt_source(args: Arguments, folder: Path, **changes: Any) -> RolloutDataSourceWithBuffer:
    """A data source of `PROMPTS` prompts that saves to and loads from ``folder``; ``changes`` of its arguments."""
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": PROMPT}) + "\n" for _ in range(PROMPTS)))
    values: dict[str, Any] = {
        "prompt_data": str(file),
        "input_key": "prompt",
        "label_key": None,
        "metadata_key": "metadata",
        "tool_key": "tools",
        "apply_chat_template": False,
        "rollout_shuffle": False,
        "n_samples_per_prompt": 2,
        "buffer_filter_path": None,
        "save": str(folder),
        "load": str(folder),
    }
    return RolloutDataSourceWithBuffer(args.changed(**(values | changes)))


@contextmanager
def rollout_engine(monkeypatch: pytest.MonkeyPatch, reply: Sequence[int] = REPLY) -> Iterator[RolloutEngine]:
    """Put a stand-in engine behind the shared client, with a fresh `GenerateState`."""
    engine = RolloutEngine(reply)
    monkeypatch.setattr(http_utils, "_http_client", httpx.AsyncClient(transport=httpx.MockTransport(engine)))
    monkeypatch.setattr(http_utils, "FIRST_DELAY_SECONDS", 0.0)
    SingletonMeta.clear(GenerateState)
    yield engine
    SingletonMeta.clear(GenerateState)


def rollout_args(model: Path, **changes: Any) -> Arguments:
    """What the rollout functions read, for ``model``; ``changes`` replace values."""
    values: dict[str, Any] = {
        "hf_checkpoint": str(model),
        "rollout_num_gpus": 1,
        "rollout_num_gpus_per_engine": 1,
        "sglang_server_concurrency": 8,
        "sglang_router_ip": "127.0.0.1",
        "sglang_router_port": 1,
        "router": "auto",
        "rollout_temperature": 0.6,
        "rollout_top_p": 1.0,
        "rollout_top_k": -1,
        "rollout_max_response_len": 16,
        "rollout_stop": None,
        "rollout_stop_token_ids": None,
        "rollout_skip_special_tokens": False,
        "custom_generate_function_path": None,
        "custom_rm_path": "lab.testkit.rollout_plugins.reward",
        "rm_type": None,
        "rm_url": None,
        "group_rm": False,
        "dynamic_sampling_filter_path": None,
        "rollout_sample_filter_path": None,
        "rollout_all_samples_process_path": None,
        "rollout_sample_hook_path": None,
        "partial_rollout": False,
        "mask_offpolicy_in_partial_rollout": False,
        "max_weight_staleness": None,
        "stale_samples": "drop",
        "rollout_batch_size": 2,
        "over_sampling_batch_size": None,
        "rollout_global_dataset": True,
    }
    unknown = set(changes) - set(values)
    assert not unknown, unknown
    return Arguments(**(values | changes))
