"""Plugins that are files: their default names, absolute paths, and flags of a method's own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.arguments import parse_args
from slime.arguments.plugins import name_of_file, resolve_plugin_files
from slime.exceptions import PluginError
from slime.rollout.reward_plugin import load_reward_function
from slime.utils.misc import load_function
from slime.utils.types import Sample
from tests.helpers.checkpoints import config_only

PLUGIN = """
import asyncio

class Model:
    def __init__(self, config):
        self.weight = config.weight

    def score(self, prompt, response, next_state):
        return self.weight * len(response) + (next_state == "thanks")

def get_reward_model(config):
    return Model(config)

def compute_loss(args, batch, logits, sum_of_sample_mean):
    return 1

class Short:
    async def compute_reward(self, prompt, response):
        return len(prompt) - len(response)

class Batched:
    def batch_compute_rewards(self, prompts, responses, next_states):
        return [len(prompt) for prompt in prompts]

class Nothing:
    pass

def add_custom_arguments(parser):
    parser.add_argument("--my-weight", type=float, default=0.5)
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "my_method" / "plugin.py"
    file.parent.mkdir()
    file.write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    return file


def test_each_option_has_its_default_name(plugin: Path) -> None:
    args = SimpleNamespace(
        custom_loss_function_path="./my_method/plugin.py",
        custom_rm_path="my_method/plugin.py",
        custom_generate_function_path="./my_method/plugin.py:Model",
        rollout_function_path="package.module.attr",
        hf_checkpoint_path=None,
        rollout_sample_hook_path=["./my_method/plugin.py:Short", "package.hook"],
    )
    assert resolve_plugin_files(args) == []
    assert args.custom_loss_function_path == f"{plugin}:compute_loss"
    assert args.custom_rm_path == f"{plugin}:get_reward_model"
    assert args.custom_generate_function_path == f"{plugin}:Model"
    assert args.rollout_function_path == "package.module.attr"
    assert args.rollout_sample_hook_path == [f"{plugin}:Short", "package.hook"]
    assert load_function(args.custom_loss_function_path)(None, None, None, None) == 1


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        (
            "custom_loss_function_path",
            "./my_method/absent.py",
            "--custom-loss-function-path ./my_method/absent.py: no such",
        ),
        ("rollout_function_path", "./my_method/plugin.py", "has no generate_rollout; say which name to use"),
        ("custom_tis_function_path", "./my_method/plugin.py", "say which name to use: ./my_method/plugin.py:NAME"),
    ],
)
def test_what_a_file_lacks_is_named(plugin: Path, option: str, value: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        name_of_file(option, value)
    assert resolve_plugin_files(Arguments(**{option: value}))


def words(model: Path) -> list[str]:
    text = f"--hf-checkpoint {model} --num-rollout 1 --rollout-batch-size 1 --disable-rollout-global-dataset"
    return text.split()


def test_a_method_declares_its_own_flags(plugin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [*words(config_only(tmp_path / "model")), "--custom-arguments-path", "./my_method/plugin.py"]
    assert parse_args([*given, "--my-weight", "2"]).my_weight == 2.0
    assert parse_args(given).my_weight == 0.5
    with pytest.raises(SystemExit):
        parse_args([*given, "--my-wight", "2"])
    assert "did you mean --my-weight?" in capsys.readouterr().err


def test_a_config_file_can_name_the_method_and_its_flags(plugin: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("custom_arguments_path: ./my_method/plugin.py\nmy_weight: 3\n")
    given = [*words(config_only(tmp_path / "model")), "--config", str(file)]
    assert parse_args(given).my_weight == 3.0
    other = tmp_path / "other.py"
    other.write_text(PLUGIN.replace("0.5", "0.25"))
    file.write_text("custom-arguments-path: ./my_method/plugin.py\n")
    assert parse_args([*given, "--custom-arguments-path", str(other)]).my_weight == 0.25


def test_a_flag_that_the_core_has_is_refused(plugin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin.write_text("def add_custom_arguments(parser):\n    parser.add_argument('--lr')\n")
    with pytest.raises(SystemExit):
        parse_args(
            [*words(config_only(tmp_path / "model")), "--custom-arguments-path", f"{plugin}:add_custom_arguments"]
        )
    assert "rename yours" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse_args(["--custom-arguments-path", "no_such_module_here.add"])
    assert "no module 'no_such_module_here'" in capsys.readouterr().err


async def test_reward_models_and_classes(plugin: Path) -> None:
    args = Arguments.of({"weight": 2.0})
    long = Sample(prompt="abc", response="ab", metadata={"next_state": "thanks"})
    short = Sample(prompt="a", response="a")
    score = load_reward_function(f"{plugin}:get_reward_model", args)
    assert await score(args, long) == 5.0
    assert await score(args, [long, short]) == [5.0, 2.0]
    assert await score(args, []) == []
    two = load_reward_function(f"{plugin}:Short", args)
    assert await two(args, [long, short]) == [1, 0]
    batched = load_reward_function(f"{plugin}:Batched", args)
    assert await batched(args, [long, short], evaluation=True) == [3, 1]
    assert await batched(args, long) == 3
    assert await batched(args, []) == []
    with pytest.raises(PluginError, match="Nothing has none of the methods score, compute_reward"):
        await load_reward_function(f"{plugin}:Nothing", args)(args, long)


def test_a_reward_function_is_taken_as_it_is() -> None:
    path = "lab.testkit.rewards.prefer_even_ids"
    assert load_reward_function(path, Arguments()) is load_function(path)
