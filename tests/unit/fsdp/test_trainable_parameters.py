"""Which parameters are trained, by patterns over their names."""

from __future__ import annotations

import pytest
from torch import nn

from groundwork.exceptions import ConfigError
from lab.testkit.trainer import trainer_args
from slime.backends.trainer.trainable import choose_trainable


def trained(**flags: object) -> list[str]:
    model = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
    choose_trainable(trainer_args("", **flags), model)
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def test_patterns_choose_parameters() -> None:
    assert trained() == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert trained(only_train_params_name_list=[r"^1\."]) == ["1.weight", "1.bias"]
    assert trained(freeze_params_name_list=["bias", "^1"]) == ["0.weight"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"only_train_params_name_list": ["q_proj"]}, "q_proj matches no parameter; names look like 0.weight"),
        ({"freeze_params_name_list": ["0", "1"]}, "leaves nothing to train"),
        ({"freeze_params_name_list": ["("]}, "not a regular expression"),
    ],
)
def test_patterns_that_mean_nothing(flags: dict[str, list[str]], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        trained(**flags)
