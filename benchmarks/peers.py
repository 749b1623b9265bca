"""Other gateways, measured in the same run as ours when they are installed; only started here, never a dependency.

LiteLLM: `python -m venv DIR && DIR/bin/python -m pip install "litellm[proxy]"`, then `--peer litellm --peer-python DIR/bin/python`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from benchmarks.gateway_runs import Server
from openclaw.runtime.process import free_port


def start_litellm(python: str, engine: Server, folder: Path) -> Server:
    """Start LiteLLM's proxy before the engine's OpenAI route, one worker, nothing logged.

    Raises:
        RuntimeError: when it is not installed or does not start.
    """
    port = free_port("127.0.0.1", 0)
    backend = {"model": "openai/policy", "api_base": f"http://127.0.0.1:{engine.port}/v1", "api_key": "none"}
    config = {"model_list": [{"model_name": "policy", "litellm_params": backend}]}
    (folder / "litellm.yaml").write_text(json.dumps(config))  # JSON is YAML
    program = Path(python).parent / "litellm"
    if not program.exists():
        raise RuntimeError(f"{program} does not exist; install litellm[proxy] there, or leave --peer out")
    command = [str(program), "--config", str(folder / "litellm.yaml"), "--host", "127.0.0.1", "--port", str(port)]
    environment = {
        "PYTHONPATH": "",
        "LITELLM_LOG": "ERROR",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",  # on loopback, for a measurement; ours has no key either
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "PATH": os.environ["PATH"],
    }
    return Server([*command, "--num_workers", "1"], port, "/health/liveliness", folder / "litellm.log", environment)
