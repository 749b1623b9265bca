"""The rollout function that a method folder names.

Guarantees: importing this module loads no engine, gateway or trainer, so the launcher and ``python -m openclaw.method``
can find a folder's method quickly. `openclaw.training.rollout` does the work.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slime.args import Arguments
from slime.utils.misc import load_function

if TYPE_CHECKING:
    from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput


class LiveRollout:
    """The rollout function of a method that learns from conversations.

    Attributes:
        method_path: ``module.attribute`` of the method that the runtime process runs.
    """

    def __init__(self, method_path: str) -> None:
        self.method_path = method_path

    @property
    def checked_by(self) -> str:
        """The command that checks the method; ``python -m slime.contract`` shows it, because it cannot check a live source."""
        spec = importlib.util.find_spec(self.method_path.rpartition(".")[0])
        folder = os.path.relpath(Path(spec.origin).parent) if spec and spec.origin else "FOLDER"
        return f"python -m openclaw.method check {folder}"

    def __call__(
        self, args: Arguments, rollout_id: int, data_source: Any, evaluation: bool = False
    ) -> RolloutFnTrainOutput | RolloutFnEvalOutput:
        """Return the batch of ``rollout_id``; wait until there are enough samples.

        Args:
            args: of the run.
            rollout_id: the samples are leased to it.
            data_source: a `LedgerDataSource` whose runtime process is started.
            evaluation: evaluate on ``--eval-prompt-data`` instead.

        Raises:
            ValueError: when the data source is another one.
            RuntimeFailedError: when the runtime process does not stay up.
            InterruptedError: when the data source was disposed of meanwhile.
        """
        return load_function("openclaw.training.rollout.live_rollout")(args, rollout_id, data_source, evaluation)
