"""Custom losses that turns of conversations cannot feed are refused by name, in the plan and before the first batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from openclaw.config.method_config import MethodConfig
from openclaw.launch.plan import Recipe
from openclaw.launch.profiles import PROFILES
from openclaw.launch.resolve import make_plan
from openclaw.method import method_config
from openclaw.training.live_arguments import check_arguments, declared_reads, unfed_loss
from slime.args import Arguments
from tests.helpers.rollout_args import rollout_args

HYBRID = "slime.algorithms.losses.hybrid_distillation.hybrid_loss"
TOPK = "slime.algorithms.losses.topk_distillation.forward_topk_distillation_loss"
ALIAS = "topk_distillation_loss.topk_distillation_loss_function"
HYBRID_METHOD = "openclaw_hybrid_method.Hybrid"
OPD, COMBINE = "openclaw_opd_method.OnPolicyDistillation", "openclaw_combine_method.Combine"
MINE = "builtins.object"
"""A method that declares nothing."""
RL = "openclaw_rl_method.BinaryRL"


def arguments(path: str, topk: int) -> Arguments:
    return Arguments(loss_type="custom_loss", custom_loss_function_path=path, distill_topk=topk)


@pytest.mark.parametrize(
    ("method", "path", "topk", "says"),
    [
        (OPD, HYBRID, 4, "rollout_topk_log_probs"),
        (COMBINE, HYBRID, 4, "samples of openclaw_combine_method.Combine do not have"),
        (MINE, HYBRID, 4, "whose Config names them in fills"),
        (HYBRID_METHOD, HYBRID, 0, "add --distill-topk 64"),
        (HYBRID_METHOD, HYBRID, 64, None),
        (HYBRID_METHOD, TOPK, 64, "teacher_topk_log_probs"),
        (COMBINE, TOPK, 50, "teacher_topk_log_probs"),
        (RL, ALIAS, 50, "teacher_topk_log_probs"),
        (OPD, TOPK, 0, "add --distill-topk 64"),
        (OPD, ALIAS, 0, "add --distill-topk 64"),
        (OPD, ALIAS, 50, None),
        (OPD, TOPK, 50, None),
        (MINE, TOPK, 50, None),
        (RL, "mine.loss", 0, None),
    ],
)
def test_what_a_method_feeds(method: str, path: str, topk: int, says: str | None) -> None:
    own = method_config(method) or MethodConfig
    problem = unfed_loss(arguments(path, topk), method, own.fills)
    assert problem is None if says is None else problem is not None and says in problem and path in problem


def test_a_loss_declares_what_it_reads() -> None:
    assert declared_reads("slime.algorithms.losses.hybrid_distillation.hybrid_loss") == {"rollout_topk_log_probs"}
    assert declared_reads("topk_distillation_loss.topk_distillation_loss_function") == {"teacher_topk_log_probs"}
    assert declared_reads("combine_loss.combine_loss") == declared_reads("nowhere.at_all.loss") == set()


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ("", None),
        ("READS: tuple[str, ...] = ('rollout_topk_log_probs',)", "reads rollout_topk_log_probs"),
        ("READS = tuple(TEACHER)", "READS of its module is not a literal"),
    ],
)
def test_a_helper_of_a_core_loss_is_not_its_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, declared: str, says: str | None
) -> None:
    text = "from slime.algorithms.losses.topk_distillation import support_ids\n" + declared + "\ndef loss(args): ...\n"
    (tmp_path / "loss_with_a_helper.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    problem = unfed_loss(arguments("loss_with_a_helper.loss", 0), RL, frozenset())
    assert problem is None if says is None else problem is not None and says in problem


@pytest.mark.parametrize(("method", "fed"), [(RL, False), (OPD, True), (COMBINE, True)])
def test_a_loss_that_asks_for_a_teacher_needs_one(tmp_path: Path, method: str, fed: bool) -> None:
    file = tmp_path / "custom_opd_loss.py"
    file.write_text("def compute_opd_loss(student_logprobs, teacher_logprobs, advantage_mask, clip_ratio=0.2): ...\n")
    own = method_config(method) or MethodConfig
    problem = unfed_loss(arguments(f"{file}:compute_opd_loss", 0), method, own.fills)
    assert problem is None if fed else problem is not None and "reads teacher_log_probs" in problem


def test_a_file_declares_what_it_reads(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("READS = ('teacher_log_probs',)\ndef loss(args, batch, logits, reduce): ...\n")
    assert declared_reads(f"{tmp_path}/mine.py:loss") == {"teacher_log_probs"}


def test_a_built_in_loss_is_fed() -> None:
    assert (
        unfed_loss(Arguments(loss_type="policy_loss", custom_loss_function_path=None, distill_topk=0), RL, frozenset())
        is None
    )


def test_the_loss_is_refused_before_anything_starts(tmp_path: Path) -> None:
    args = rollout_args(tmp_path)
    args.loss_type, args.custom_loss_function_path = "custom_loss", HYBRID
    with pytest.raises(ValueError, match="reads rollout_topk_log_probs"):
        check_arguments(args, OPD)
    args.distill_topk = 64
    check_arguments(args, HYBRID_METHOD)
    args.custom_loss_function_path = f"{__name__}.renamed"
    with pytest.raises(ValueError, match=f"{__name__}.renamed reads teacher_topk_log_probs"):
        check_arguments(args, COMBINE)


def __getattr__(name: str) -> Any:
    """The core's loss under another name, as a method folder may offer it."""
    if name != "renamed":
        raise AttributeError(name)
    from slime.algorithms.losses.topk_distillation import topk_distillation_loss

    return topk_distillation_loss


@pytest.mark.parametrize("method", ["rl", "opd", "combine"])
def test_the_plan_names_it(method: str) -> None:
    flags = ["--loss-type", "custom_loss", "--custom-loss-function-path", HYBRID]
    plan = make_plan(Recipe(method, None, PROFILES["gpu8"]), flags, {})
    assert [problem for problem in plan.problems if f"the samples of openclaw-{method} do not have" in problem]


@pytest.mark.parametrize("method", ["opd_topk", "hybrid"])
def test_the_plan_of_a_top_k_method_has_its_loss_fed(method: str) -> None:
    plan = make_plan(Recipe(method, None, PROFILES["gpu8"]), [], {})
    assert not [problem for problem in plan.problems if "custom-loss" in problem]
