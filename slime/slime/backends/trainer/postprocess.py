"""The plugin that sees a training rank's data after log probabilities and advantages, before the first optimizer step.

``fn(args, rollout_id, rollout_data)``; a function of older methods that takes fewer than three values is called as ``fn(args)``.
``rollout_data`` maps names to per-sample lists; what the plugin changes in place is what the steps train on.
"""

from __future__ import annotations

import inspect

from slime.args import Arguments
from slime.backends.trainer.rollout_data import RolloutShard
from slime.utils.misc import load_function


def postprocess(args: Arguments, rollout_id: int, data: RolloutShard) -> None:
    """Call the function of ``--rollout-data-postprocess-path`` on the rank's data, if there is one."""
    path = args.rollout_data_postprocess_path
    if not path:
        return
    function = load_function(path)
    if len(inspect.signature(function).parameters) < 3:
        function(args)
        return
    data.fields["tokens"] = data.tokens
    try:
        function(args, rollout_id, data.fields)
    finally:
        del data.fields["tokens"]
