"""A vLLM engine: `SGLangEngine` with another server behind the same routes (`translator`).

Guarantees are those of `SGLangEngine`, except that memory is never released: ``--offload-rollout`` is refused with vLLM.
"""

from __future__ import annotations

import base64
import hashlib
import os
import pickle
import re
from typing import Any

from groundwork.start_timeline import Step
from slime.args import Arguments
from slime.backends.sglang_utils.engine import SGLangEngine
from slime.backends.sglang_utils.engine_process import EngineProcess, process_environment
from slime.backends.vllm_utils.command import server_command, vllm_environment

LINES = {
    Step.IMPORTED: re.compile(rb"non-default args: "),
    Step.WEIGHTS: re.compile(rb"Loading weights took "),
    Step.CACHE: re.compile(rb"KV cache size: "),
    Step.GRAPHS: re.compile(rb"Graph capturing finished in "),
}
"""The line of vLLM that ends a step of its start."""


class VLLMProcess(EngineProcess):
    """Owns the process group of vLLM and its translator."""

    stop_seconds = 10.0
    """vLLM frees the memory that its processes share only when it ends by itself."""

    def _command(self, port: int, rendezvous: str) -> list[str]:
        return server_command(self._args, self._spec, port=port, cpu=self._cpu)

    def _environment(self) -> dict[str, str]:
        return vllm_environment(self._args, process_environment(self._args, self._spec, os.environ), cpu=self._cpu)


class VLLMEngine(SGLangEngine):
    """Owns one server; see the module."""

    process_type = VLLMProcess
    start_lines = LINES

    def load_lora_adapter_from_tensors(
        self, name: str, config: dict[str, Any], serialized: bytes, checksums: dict[str, str] | None
    ) -> None:
        """Load an additional adapter, a pickled dict of tensors under PEFT's names; ``checksums`` are not compared."""
        from safetensors.torch import save

        self._post(
            "/load_lora_adapter",
            lora_name=name,
            config_dict=config,
            safetensors=base64.b64encode(save(pickle.loads(serialized))).decode(),
            sha256=hashlib.sha256(serialized).hexdigest(),
        )

    def close_left_session(self) -> None:
        """No-op: vLLM loads a folder in one call, so a dead trainer leaves no session open."""


def engine_type(args: Arguments) -> type[SGLangEngine]:
    """Return the class of the run's own engines, by ``--backend``."""
    return VLLMEngine if args.backend == "vllm" else SGLangEngine
