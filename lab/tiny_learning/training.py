"""The run: a pool of environments, and slime's trainer with the agent loop, which evaluates before the first update and after the last.

Guarantee: the run is the real one: ``slime/train.py``, SGLang, the pool and, with a process reward, a judge engine of its own.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from agentrl.pool_process import start_pool
from groundwork.process import ChildProcess, spawn
from lab.tiny_learning.traces import AgentTasks
from openclaw.launch.report import STARTED_AS

REPOSITORY = Path(__file__).resolve().parents[2]
GENERATE = "agentrl.rollout.generate.generate"
GROUP_REWARD = "agentrl.rollout.group_reward.group_reward"
EVIDENCE = "lab.tiny_learning.evidence.Evidence"
STOP_S = 90.0
TRAINED_TASKS, HELDOUT_TASKS = 200, 20
"""Of each family, as every pool offers them."""
EVALUATED_TWICE = 2
CONTEXT, REPLY = 1024, 96
"""Most tokens of an episode, and of a reply."""
TURNS = 6
TEMPERATURE = 0.6
"""Of policy and judge; the warm start is measured with the same (`tiny_models.sampling.TEMPERATURE`)."""


@dataclass(frozen=True)
class Sizes:
    """How much is trained and measured.

    Attributes:
        prompts: tasks of an update.
        samples: episodes of a task.
        heldout: held-out tasks of a family; each is played `EVALUATED_TWICE`.
        slots: environments at a time.
        rate: learning rate.
        votes: of the judge, on a step.
        judge_weight: of the mean score of the steps beside the outcome.
    """

    prompts: int = 8
    samples: int = 8
    heldout: int = 20
    slots: int = 12
    rate: float = 4e-4
    votes: int = 3
    judge_weight: float = 0.5


@dataclass(frozen=True)
class Plan:
    """One run."""

    tasks: AgentTasks
    model: Path
    folder: Path
    updates: int
    seed: int
    process_reward: bool
    sizes: Sizes
    resumed: bool = False
    group_judge: bool = False

    @property
    def batch(self) -> int:
        """Episodes of an update."""
        return self.sizes.prompts * self.sizes.samples

    @property
    def evaluated(self) -> int:
        """Episodes of an evaluation."""
        return len(self.tasks.families) * self.sizes.heldout * EVALUATED_TWICE

    @property
    def log(self) -> Path:
        """What the trainer prints."""
        return self.folder / "trainer.log"

    def prompts(self) -> tuple[Path, Path]:
        """Write the tasks of training and evaluation; return both files."""
        draw, sizes = random.Random(self.seed), self.sizes
        trained = [
            self.tasks.task(draw.choice(self.tasks.trained), "train", draw.randrange(TRAINED_TASKS))
            for _ in range(self.updates * sizes.prompts)
        ]
        heldout = [
            self.tasks.task(family, "heldout", number)
            for family in self.tasks.families
            for number in range(sizes.heldout)
        ]
        return _written(self.folder / "train.jsonl", trained), _written(self.folder / "heldout.jsonl", heldout)

    def words(self) -> list[str]:
        """Return the arguments of the trainer; writes the files that they name."""
        trained, heldout = self.prompts()
        sizes = self.sizes
        words = [
            *("--device", "cpu", "--actor-num-gpus-per-node", "1", "--rollout-num-gpus", "1"),
            *("--hf-checkpoint", self.model, "--run-dir", self.folder, "--save", self.folder / "checkpoints"),
            *("--save-interval", 1, "--seed", self.seed, "--rollout-seed", self.seed),
            *("--prompt-data", trained, "--input-key", "prompt", "--metadata-key", "metadata"),
            *("--custom-generate-function-path", GENERATE, "--dynamic-history"),
            *("--num-rollout", self.updates, "--rollout-batch-size", sizes.prompts),
            *("--n-samples-per-prompt", sizes.samples, "--advantage-estimator", "grpo"),
            "--disable-grpo-std-normalization",
            *("--rollout-max-context-len", CONTEXT, "--rollout-max-response-len", REPLY),
            *("--lr", sizes.rate, "--rollout-temperature", TEMPERATURE, "--weight-decay", "0"),
            *("--use-dynamic-batch-size", "--max-tokens-per-gpu", "8192"),
            *("--eval-interval", self.updates, "--eval-prompt-data", "heldout", heldout),
            *("--n-samples-per-eval-prompt", EVALUATED_TWICE, "--sglang-context-length", "2048"),
        ]
        if self.resumed:
            words.append("--resume")
        if self.group_judge:
            words += ["--group-rm", "--custom-rm-path", GROUP_REWARD]
        if self.process_reward:
            words += ["--prm-enable", "--prm-num-gpus", "1", "--prm-model-path", self.model, "--prm-m", sizes.votes]
            words += ["--prm-temperature", TEMPERATURE, "--prm-max-new-tokens", "40"]
            words += ["--prm-step-coef", sizes.judge_weight]
        return [str(word) for word in words]

    def variables(self, pool_url: str) -> dict[str, str]:
        """Return the trainer's variables."""
        paths = [str(REPOSITORY), str(REPOSITORY / "slime"), os.environ.get("PYTHONPATH", "")]
        return {
            **{name: value for name, value in os.environ.items() if name != STARTED_AS},
            **(
                {"OPENCLAW_JUDGE_CLASS": EVIDENCE}
                if self.group_judge and not os.environ.get("OPENCLAW_JUDGE_BASE_URL")
                else {}
            ),
            **self.tasks.variables,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "AGENTRL_POOL_URL": pool_url,
            "AGENTRL_MAX_TURNS": str(TURNS),
            "AGENTRL_REWARD": "binary",
        }


def start_training(plan: Plan, stack: ExitStack) -> ChildProcess:
    """Start pool and trainer, which end with the stack; return the trainer.

    Raises:
        InfraError: the pool did not start.
    """
    pool = {**os.environ, **plan.tasks.variables}
    url = start_pool(pool_words(plan), plan.folder / "pool.log", stack, pool)
    command = [sys.executable, str(REPOSITORY / "slime" / "train.py"), *plan.words()]
    trainer = spawn(command, env=plan.variables(url), log_path=plan.log, name="trainer")
    stack.callback(trainer.stop, STOP_S)
    return trainer


def pool_words(plan: Plan) -> list[str]:
    """Return the arguments of the pool: the environments are small, and share the cores."""
    words = ["--env", plan.tasks.environment, "--slots", plan.sizes.slots, "--cpu", plan.sizes.slots]
    return [str(word) for word in [*words, "--ledger", plan.folder / "pool.sqlite"]]


def _written(file: Path, names: Sequence[str]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"prompt": name, "metadata": {"task_id": name}} for name in names]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file
