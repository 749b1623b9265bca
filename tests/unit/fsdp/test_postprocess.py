"""The plugin that sees a rank's data before its first step, in both forms."""

from __future__ import annotations

import torch

from lab.testkit.trainer import shards, train_data, trainer_args
from slime.args import Arguments
from slime.backends.trainer.micro_batch import RolloutShard, postprocess
from tests.helpers import recording_plugins
from tests.helpers.recording_plugins import CALLS


def test_both_forms_are_called_and_changes_stay() -> None:
    CALLS.clear()
    data = RolloutShard(shards(trainer_args("model"), train_data(3), 1)[0])
    data.set_computed("advantages", [torch.ones(length) for length in data.fields["response_lengths"]])
    for name in ("postprocess_data", "postprocess_old"):
        path = f"{recording_plugins.__name__}.{name}"
        args = Arguments(rollout_data_postprocess_path=path)
        vars(args)["name"] = "args"
        postprocess(args, 4, data)
    postprocess(Arguments(rollout_data_postprocess_path=None), 5, data)
    assert CALLS == [("postprocess", (4, 3)), ("postprocess", "args")]
    assert {float(value) for values in data.fields["advantages"] for value in values} == {0.5}
    assert "tokens" not in data.fields
