"""What the rollout function reads of a run's arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slime.args import Arguments


def rollout_args(run_dir: Path, **changes: Any) -> Arguments:
    """Return the arguments of a run in ``run_dir``; ``changes`` replace values."""
    values: dict[str, Any] = {
        "save": None,
        "run_dir": str(run_dir),
        "rollout_function_path": "openclaw_rollout.generate_rollout_openclaw",
        "rollout_batch_size": 2,
        "global_batch_size": 2,
        "n_samples_per_prompt": 1,
        "max_weight_staleness": None,
        "stale_samples": "drop",
        "adapter_per_person": False,
        "sglang_router_ip": "127.0.0.1",
        "sglang_router_port": 1111,
        "prm_router_ip": "127.0.0.1",
        "prm_router_port": 2222,
        "hf_checkpoint": "/models/policy",
        "prm_model_path": "/models/judge",
        "opd_teacher": "policy",
        "distill_topk": 0,
        "rollout_temperature": 0.6,
        "rollout_top_p": 1.0,
        "rollout_max_response_len": 512,
        "rollout_max_context_len": 4096,
        "prm_m": 3,
        "prm_temperature": 0.6,
        "prm_max_new_tokens": 256,
    }
    unknown = set(changes) - set(values)
    assert not unknown, unknown
    return Arguments(**(values | changes))
