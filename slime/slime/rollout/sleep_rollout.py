"""A rollout function that never returns, for inspecting a run with engines and trainer up."""

from __future__ import annotations

import logging
import time
from typing import Any, NoReturn

from slime.args import Arguments

logger = logging.getLogger(__name__)

_WORD_SECONDS = 60.0


def sleep(args: Arguments, rollout_id: int, data_source: Any, evaluation: bool = False) -> NoReturn:
    """``--rollout-function-path slime.rollout.sleep_rollout.sleep``; ends with the run."""
    while True:
        logger.info("rollout %d sleeps on purpose (sleep_rollout); end the run when you are done", rollout_id)
        time.sleep(_WORD_SECONDS)
