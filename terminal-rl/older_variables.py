"""Variables of older terminal set-ups that have no meaning here, each with what to use instead.

Guarantee: a variable that would change nothing stops the command that is asked to start.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from groundwork.exceptions import ConfigError

AGAIN = "a call whose connection is cut is sent again until its deadline, and runs once"
FILE = "it is said in the file of --custom-config-path, as"
CLIENT: Mapping[str, str] = {
    "ENV_HTTP_MAX_RETRIES": AGAIN,
    "ENV_EXEC_TOOL_MAX_RETRIES": AGAIN,
    "ENV_EVALUATE_MAX_RETRIES": "AGENTRL_TRIES says how often a lost episode is tried",
    "ENV_ALLOCATE_MAX_RETRIES": "AGENTRL_WAIT_SECONDS says how long an episode waits for an environment",
    "ENV_CLOSE_MAX_RETRIES": f"{FILE} close_session_timeout",
}
WORKER: Mapping[str, str] = {
    "WORKER_RUN_IDLE_TTL": "AGENTRL_TTL_SECONDS of the trainer says how long a lease outlives it",
    "WORKER_MAX_CONCURRENT_CLOSES": "sandboxes close beside each other, each within CLOSE_SESSION_TIMEOUT",
    "ENSURE_IMAGE_TIMEOUT": f"{FILE} ensure_image_timeout",
    "RESET_SESSION_TIMEOUT": f"{FILE} reset_session_timeout",
    "EVAL_TIMEOUT": f"{FILE} eval_timeout",
    "COMPOSE_OVERRIDE_PATH": "a task runs in one container without compose; name its image in task.toml",
    "CONTAINER_MEMORY_LIMIT": "memory_mb in the [environment] of task.toml bounds a task",
}
ROUTER: Mapping[str, str] = {
    "ROUTER_FORWARD_TIMEOUT": "each call carries its own deadline",
    "ROUTER_FORWARD_RETRIES": AGAIN,
    "ROUTER_FORWARD_RETRY_BACKOFF": AGAIN,
}


def refuse(older: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> None:
    """Refuse the variables of a table.

    Raises:
        ConfigError: names all that are set.
    """
    if results := [f"unset {name}: {why}" for name, why in older.items() if environment.get(name)]:
        raise ConfigError("; ".join(results))
