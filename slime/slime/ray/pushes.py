"""Push the trainer's weights to all engines, again after an engine failed in the push."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from slime.exceptions import LostError, TrainerError
from slime.ray.trainer import Trainer

logger = logging.getLogger(__name__)

PUSH_ATTEMPTS = 3


def send_weights(trainer: Trainer, ask: Callable[..., Any], *, connect: bool) -> str:
    """Push in at most ``PUSH_ATTEMPTS`` attempts and return the version that the engines serve.

    A push that fails on an engine ends that engine (`slime.weight_sync`). It is restarted, and all engines get the
    weights again. Any other failure is raised.

    Args:
        trainer: whose weights are pushed.
        ask: ``ask(method, *arguments)`` calls the rollout manager.
        connect: whether engines started since the last push.
    """
    for attempt in range(1, PUSH_ATTEMPTS + 1):
        try:
            if connect:
                trainer.connect_rollout_engines(ask("engine_handles"))
            version = trainer.update_weights()
            if connect:
                ask("weights_arrived")
            return version
        except LostError:
            raise
        except TrainerError:
            if attempt == PUSH_ATTEMPTS or not ask("recover_engines"):
                raise
            logger.exception("an engine failed in a weight update (attempt %d); sending the weights again", attempt)
            connect = True
    raise AssertionError("the last attempt returns or raises")
