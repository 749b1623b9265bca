"""The page about one turn shows numbers that satisfy its own formulas, computed by the trainer's functions."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch

from openclaw.credit.baseline import mean_of
from openclaw.launch.methods import methods_of
from slime.algorithms.advantages import compute_advantages
from slime.args import Arguments
from slime.utils.ppo_utils import compute_policy_loss
from tests.page_commands.blocks import blocks_of

ROW = re.compile(r"^ +\d+ +([+-]\d\.\d{4}) +([+-]\d\.\d{4}) +([+-]\d\.\d{4})  '", re.MULTILINE)
ROUNDING = 1.1e-4
"""Each of three printed numbers is off by at most half of the last digit."""


@pytest.fixture
def page(repository: Path) -> str:
    return (repository / "instructions" / "gradient.md").read_text()


def number(pattern: str, page: str) -> float:
    """Return the only number that the page has at a place."""
    [found] = set(re.findall(pattern, page))
    return float(found)


def sample_means(page: str) -> list[float]:
    [block] = [block.text for block in blocks_of("gradient.md", page)[0] if re.match(r"[+-]\d\.\d{4} ", block.text)]
    return [float(word) for word in block.split()]


def test_the_advantages_of_the_tokens_follow_from_their_row(page: str) -> None:
    rows = [[float(word) for word in row] for row in ROW.findall(page)]
    assert len(rows) == 10
    sampled, teacher, shown = (torch.tensor(column) for column in zip(*rows, strict=True))
    clip = number(r"--opd-clip (\S+?)`", page)
    args = Arguments.of({"advantage_estimator": "grpo", "use_opd": True, "opd_kl_coef": 1.0, "opd_clip": clip})
    rollout = {
        "rewards": [-1.0 - mean_of([1.0])],
        "response_lengths": [len(rows)],
        "loss_masks": [torch.ones(len(rows))],
        "rollout_log_probs": [sampled],
        "log_probs": [sampled],
        "teacher_log_probs": [teacher],
    }
    [values], _ = compute_advantages(args.changed(kl_coef=0.0, normalize_advantages=False), rollout)
    assert (values - shown).abs().max() < 2 * ROUNDING
    assert round(-1.0 - mean_of([1.0]), 3) == number(r"minus the baseline \+0\.113 = (\S+)", page)


def test_the_loss_is_that_of_the_samples(page: str) -> None:
    means = torch.tensor(sample_means(page))
    assert len(means) == 16
    losses, clipped = compute_policy_loss(torch.zeros(16), means, 0.2, 0.28, 3.0)
    assert clipped.sum() == 0
    # Both are rounded: sixteen means, and the logged loss.
    assert losses.mean().item() == pytest.approx(number(r"`train/loss` \| ([\d.]+)", page), abs=1e-4)
    assert round(1.1266 / 16, 4) == number(r"1\.1266 / 16 = ([\d.]+)", page)
    assert -1.1266 in [round(mean, 4) for mean in means.tolist()]


def test_the_probabilities_are_those_of_the_log_probabilities(page: str) -> None:
    rows = re.findall(r"^\| version \d \| (\S+) \| (\d+) % \|$", page, re.MULTILINE)
    assert len(rows) == 3
    assert [round(100 * math.exp(float(value))) for value, _ in rows] == [int(share) for _, share in rows]


def test_the_bounds_are_those_of_the_method_and_the_defaults(page: str) -> None:
    [combine] = [method.config for method in methods_of() if method.config.name == "combine"]
    flags = combine.from_env({}).launch_flags()
    assert flags[flags.index("--opd-clip") + 1] == f"{number(r'--opd-clip (.+?)`', page):g}"
    assert flags[flags.index("--eps-clip-high") + 1] == f"{number(r'1 [+] (0[.][0-9]+)[)]', page):g}"
    assert combine.profile_defaults["tiny_cpu"]["KL_LOSS_COEF"] == number(r"\+ (\S+) · KL", page)
    assert combine.profile_defaults["tiny_cpu"]["LEARNING_RATE"] == number(r"learning rate of (\S+?)\. ", page)
