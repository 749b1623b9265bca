"""Where the critic of PPO starts from beside a policy that goes on, and that no other critic's checkpoints are overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.arguments import parse_args
from tests.helpers.arguments import refusal
from tests.helpers.checkpoints import config_only, published


@pytest.fixture
def base(tmp_path: Path) -> list[str]:
    """The shortest command line of a run with a critic."""
    words = "--rollout-batch-size 4 --num-rollout 1 --device cpu --advantage-estimator ppo --rollout-max-response-len 8"
    return [*words.split(), "--hf-checkpoint", str(config_only(tmp_path / "model"))]


def test_a_second_start_goes_on_from_the_critic_of_the_policys_rollout(base: list[str], tmp_path: Path) -> None:
    save, own = tmp_path / "save", tmp_path / "own"
    words = [*base, *f"--save {save} --load {save} --critic-save {own}".split()]
    assert parse_args(words).critic_load is None
    published(save, 3)
    for number in (3, 4):  # the critic was ahead when the run ended
        published(own, number)
    for given in ([], ["--critic-load", str(own)], ["--critic-load", str(own / "iter_0000003")]):
        assert parse_args([*words, *given]).critic_load == str(own / "iter_0000003")


@pytest.mark.parametrize("named", ["", "iter_0000003"])
def test_the_critic_next_to_the_loaded_policy_is_taken(base: list[str], tmp_path: Path, named: str) -> None:
    for root in (tmp_path / "old", tmp_path / "old/critic"):
        published(root, 3)
    words = [*base, "--load", str(tmp_path / "old" / named), "--save", str(tmp_path / "new")]
    assert parse_args(words).critic_load == str(tmp_path / "old/critic/iter_0000003")
    assert parse_args([*words, "--critic-load", str(tmp_path / "model")]).critic_load == str(tmp_path / "model")


def test_a_policy_that_was_not_trained_has_no_critic(base: list[str], tmp_path: Path) -> None:
    published(tmp_path / "converted", 0)
    assert parse_args([*base, "--load", str(tmp_path / "converted")]).critic_load is None


@pytest.mark.parametrize("missing", ["all", "the rollout"])
def test_a_missing_critic_is_refused(
    base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    save = tmp_path / "save"
    published(save, 3)
    if missing == "the rollout":
        published(save / "critic", 4)
    said = refusal(capsys, [*base, "--load", str(save), "--save", str(save)])
    assert f"the critic's checkpoint of the same rollout, {save / 'critic/iter_0000003'}, is missing" in said


def test_a_used_folder_of_another_run_is_refused(
    base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    used = tmp_path / "used"
    published(used, 3)
    message = f"--critic-save {used} holds checkpoints of an earlier run"
    fresh = [*base, "--save", str(tmp_path / "new"), "--critic-save", str(used)]
    assert message in refusal(capsys, fresh)
    assert message in refusal(capsys, [*fresh, "--load", str(tmp_path / "new")])
    assert message in refusal(capsys, [*fresh, "--critic-load", str(used)])


def test_going_on_with_another_critic_is_refused(
    base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save = tmp_path / "save"
    for root in (save, save / "critic"):
        published(root, 3)
    said = refusal(capsys, [*base, *f"--load {save} --save {save} --critic-load {tmp_path / 'model'}".split()])
    assert "is not the critic in --critic-save that matches --load" in said
