"""mini-swe-agent, unmodified: its own command, which runs bash in the working directory until the model submits.

Guarantees: the model's endpoint, the task and the limits are settings of mini-swe-agent itself, in a configuration file below
/tmp. Commands of the model see neither the key nor the packages of the program in their variables. It writes nothing below
the working directory but what these commands write.
"""

from __future__ import annotations

import json

from agentrl.harness.interface import Assignment
from agentrl.harness.program import ROOT, Launch, Program
from agentrl.sandbox.interface import HOME, Sandbox

FOLDER = "/tmp/mini-swe-agent"
CONFIG = f"{FOLDER}/config.yaml"
MODULE = "minisweagent.run.mini"
SETTINGS_FILE = "mini.yaml"
"""Of the package: prompts and the tool `bash`."""


class MiniSweAgent(Program):
    """Runs ``mini`` without a terminal, with tool calls.

    Its costs are not counted: prices of the policy are unknown.
    """

    name = "mini-swe-agent"
    memory_mib = 384
    processes = 32
    setup = ("scripts/setup_mini_swe_agent.sh",)
    installed = ROOT / ".cache" / "mini_swe_agent"
    inside = "/opt/mini-swe-agent"

    def __init__(self, *, step_limit: int = 100, command_s: int = 60, attempts: int = 10) -> None:
        """Set the limits.

        Args:
            step_limit: most calls of the model in a run.
            command_s: seconds that a command may take.
            attempts: tries of a call that failed, with growing pauses between them.
        """
        super().__init__()
        self.step_limit = step_limit
        self.command_s = command_s
        self.attempts = attempts

    async def launch(self, assignment: Assignment, sandbox: Sandbox) -> Launch:
        """Return its start; it ends when the model submits."""
        return Launch(
            command=[
                *(f"{self.inside}/bin/python3", "-I", "-B", "-m", MODULE),
                *("-c", SETTINGS_FILE, "-c", CONFIG, "--yolo", "--exit-immediately", "--output", "/dev/null"),
            ],
            files={CONFIG: json.dumps(self._config(assignment))},
            environment={
                "OPENAI_API_KEY": assignment.api_key,
                "MSWEA_CONFIGURED": "true",
                "MSWEA_COST_TRACKING": "ignore_errors",
                "MSWEA_GLOBAL_CONFIG_DIR": FOLDER,
                "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": str(self.attempts),
                "MSWEA_SILENT_STARTUP": "1",
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            },
        )

    def _config(self, assignment: Assignment) -> dict[str, object]:
        """Return what its own settings leave open; JSON is YAML."""
        return {
            "run": {"task": assignment.instruction},
            "agent": {"step_limit": self.step_limit, "cost_limit": 0},
            "environment": {"cwd": HOME, "timeout": self.command_s, "env": {"OPENAI_API_KEY": ""}},
            "model": {
                "model_name": f"openai/{assignment.model}",
                "model_kwargs": {"api_base": assignment.base_url},
                "set_cache_control": None,
            },
        }
