"""Losses that ask for their values by name: the signatures of the guides, through the trainer's micro-batch, against float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lab.testkit.trainer import trainer_args
from slime.algorithms.losses.named_values import load_custom_loss
from slime.args import Arguments
from slime.arguments.memory_budget.trainer import reads_whole_logits
from slime.arguments.plugin_forms import FormError
from slime.arguments.plugins import name_of_file, wrong_signatures
from slime.backends.trainer.micro_batch import MicroBatch, RolloutShard, micro_batch_loss
from slime.logprobs.response_rows import ResponseRows
from tests.helpers.tolerance import assert_near

HEADER = "import torch\n\n\n"
CLIPPED = (
    HEADER
    + """
def compute_loss(policy_logits, reference_logits, rewards, advantages, config):
    gap = policy_logits - reference_logits
    width = config.get("clip_range", 0.2)
    near = gap.exp().clamp(1 - width, 1 + width)
    surrogate = torch.minimum(gap.exp() * advantages, near * advantages)
    return config.get("kl_coeff", 0.01) * gap.mean() - surrogate.mean() + 0.0 * rewards.sum()
"""
)
DISTILLING = (
    HEADER
    + """
def compute_opd_loss(student_logprobs, teacher_logprobs, advantage_mask, clip_ratio=0.2):
    ratio = (student_logprobs - teacher_logprobs).exp()
    gap = teacher_logprobs - student_logprobs
    worst = torch.maximum(-gap * ratio, -gap * ratio.clamp(1 - clip_ratio, 1 + clip_ratio))
    return (worst * advantage_mask).sum() / advantage_mask.sum()
"""
)
BOTH = (
    HEADER
    + """
def compute_hybrid_loss(
    student_logprobs, teacher_logprobs, scalar_rewards, opd_weight=0.5, binary_weight=0.5, clip_ratio=0.2
):
    ratio = (student_logprobs - student_logprobs.detach()).exp()
    clipped = ratio.clamp(1 - clip_ratio, 1 + clip_ratio)
    binary = torch.maximum(-scalar_rewards * ratio, -scalar_rewards * clipped).mean()
    opd = (teacher_logprobs - student_logprobs).square().mean()
    total = binary_weight * binary + opd_weight * opd
    return total, {"binary": binary.item(), "opd": opd.item()}
"""
)
TOKENS = [[1, 2, 3, 4, 5], [6, 7, 3], [4, 2, 9, 8, 1, 3]]
RESPONSES, MASKS = [3, 1, 4], [[1, 0, 1], [1], [1, 1, 1, 0]]
WIDTH, VOCABULARY, TEMPERATURE = 6, 11, 0.7


def written(folder: Path, text: str) -> str:
    file = folder / "custom_loss.py"
    file.write_text(text)
    return name_of_file("custom_loss_function_path", str(file))


def arguments(path: str, **changes: Any) -> Arguments:
    values = {"rollout_temperature": TEMPERATURE, "loss_type": "custom_loss", "custom_loss_function_path": path}
    return trainer_args("", **{**values, **changes})


def shard_of() -> RolloutShard:
    """Three samples of different lengths, with masked tokens, a teacher on the first and third, and two policies."""
    generator = torch.Generator().manual_seed(3)

    def numbers() -> list[torch.Tensor]:
        return [-2.0 - torch.rand(length, generator=generator) for length in RESPONSES]

    teacher = numbers()
    data = {"tokens": TOKENS, "response_lengths": RESPONSES, "total_lengths": [*map(len, TOKENS)], "loss_masks": MASKS}
    data |= {"rewards": [0.5, -0.5, 0.25], "raw_reward": [1.0, 0.0, 0.75]}
    data |= {"teacher_log_probs": [teacher[0].tolist(), None, teacher[2].tolist()]}
    data |= {"partition": [0, 1, 2], "micro_batch_indices": [[[0, 1, 2]]]}
    shard = RolloutShard({**data, "global_batch_sizes": [3], "global_token_counts": [sum(map(sum, MASKS))]})
    for name in ("log_probs", "ref_log_probs", "advantages"):
        shard.set_computed(name, numbers())
    return shard


class Model:
    """An embedding and a head, whose logits exist for response rows only."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(4)
        self.embedding = torch.randn(VOCABULARY, WIDTH, generator=generator)
        self.head = torch.randn(VOCABULARY, WIDTH, generator=generator).requires_grad_()

    def __call__(self, inputs: MicroBatch, *, temperature: float, chunk_size: int, of_rows: Any) -> Any:
        hidden = self.embedding[inputs.input_ids.flatten()[inputs.rows]]
        return of_rows(ResponseRows(((hidden, self.head),), chunk_size))

    def exact(self) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the head in float64, and the log probabilities of each response with a gradient to it."""
        head = self.head.detach().double().requires_grad_()
        results = []
        for tokens, count in zip(TOKENS, RESPONSES, strict=True):
            before = torch.tensor(tokens[len(tokens) - count - 1 : -1])
            table = (self.embedding[before].double() @ head.T / TEMPERATURE).log_softmax(-1)
            results.append(table.gather(-1, torch.tensor(tokens[len(tokens) - count :]).unsqueeze(-1)).squeeze(-1))
        return head, results


def losses_of(args: Arguments, pieces: list[list[int]]) -> tuple[float, torch.Tensor, dict[str, float]]:
    """Return the sum over micro-batches of loss, gradient of the head, and metrics."""
    model, shard = Model(), shard_of()
    metrics: dict[str, float] = {}
    total = 0.0
    for indices in pieces:
        loss, given = micro_batch_loss(args, model, shard, indices, torch.device("cpu"))  # pyright: ignore[reportArgumentType]
        loss.backward()
        total += float(loss.detach())
        metrics = {name: metrics.get(name, 0.0) + float(value) for name, value in given.items()}
    assert model.head.grad is not None
    return total, model.head.grad, metrics


def kept(values: Any, index: int) -> torch.Tensor:
    return torch.as_tensor(values[index]).double()[torch.tensor(MASKS[index]).bool()]


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize(("flags", "width"), [({}, 0.2), ({"eps_clip": 0.05}, 0.05), ({"use_kl_loss": True}, 0.2)])
def test_the_clipped_loss_is_that_of_its_formula(
    tmp_path: Path, per_token: bool, flags: dict[str, Any], width: float
) -> None:
    args = arguments(written(tmp_path, CLIPPED), calculate_per_token_loss=per_token, **flags)
    fields = shard_of().fields
    head, policies = Model().exact()
    expected = torch.zeros((), dtype=torch.float64)
    for index, policy in enumerate(policies):
        gap = policy[torch.tensor(MASKS[index]).bool()] - kept(fields["ref_log_probs"], index)
        ratio, advantage = gap.exp(), kept(fields["advantages"], index)
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - width, 1 + width) * advantage)
        weight = sum(MASKS[index]) if per_token else 1.0
        expected = expected + weight * (0.01 * gap.mean() - surrogate.mean())
    expected.backward()
    assert head.grad is not None
    for pieces in ([[0, 1, 2]], [[2], [0, 1]], [[0], [1], [2]]):
        loss, gradient, metrics = losses_of(args, pieces)
        assert_near(loss, float(expected.detach()))
        assert_near(gradient, head.grad.float())
        assert metrics["loss"] == pytest.approx(loss)


def test_the_reference_is_the_old_policy_without_a_reference_model(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        HEADER
        + "def loss(policy_logits, reference_logits):\n    return reference_logits.sum() + 0 * policy_logits.sum()\n",
    )
    args, found = arguments(path), []
    for drop in ((), ("ref_log_probs",)):
        shard = shard_of()
        for name in drop:
            del shard.fields[name]
        loss, _ = micro_batch_loss(args, Model(), shard, [0, 1, 2], torch.device("cpu"))  # pyright: ignore[reportArgumentType]
        name = "log_probs" if drop else "ref_log_probs"
        assert_near(float(loss.detach()), sum(float(kept(shard.fields[name], index).sum()) for index in range(3)))
        found.append(float(loss.detach()))
    assert found[0] != found[1]


def test_distillation_skips_a_sample_without_a_teacher(tmp_path: Path) -> None:
    args = arguments(written(tmp_path, DISTILLING))
    teacher = shard_of().fields["teacher_log_probs"]
    head, policies = Model().exact()
    terms = []
    for index in (0, 2):
        gap = kept(teacher, index) - policies[index][torch.tensor(MASKS[index]).bool()]
        ratio = (-gap).exp()
        terms.append(torch.maximum(-gap * ratio, -gap * ratio.clamp(0.8, 1.2)).mean())
    sum(terms).backward()  # pyright: ignore[reportAttributeAccessIssue]
    assert head.grad is not None
    loss, gradient, metrics = losses_of(args, [[0, 1], [2]])
    assert_near(loss, float(sum(terms).detach()), roundings=1800)
    assert_near(gradient, head.grad.float(), roundings=1800)
    assert metrics["with_teacher"] == 2.0


def test_a_hybrid_loss_gets_rewards_a_neutral_teacher_and_its_own_weights(tmp_path: Path) -> None:
    args = arguments(written(tmp_path, BOTH))
    vars(args)["opd_weight"] = 0.3  # as --custom-config-path sets it
    shard = shard_of()
    _, policies = Model().exact()
    expected = {"binary": 0.0, "opd": 0.0, "with_teacher": 2.0}
    for index, reward in enumerate(shard.fields["raw_reward"]):
        policy = policies[index][torch.tensor(MASKS[index]).bool()].detach()
        gap = policy * 0.0 if index == 1 else kept(shard.fields["teacher_log_probs"], index) - policy
        expected["binary"] -= reward
        expected["opd"] += float(gap.square().mean())
    loss, gradient, metrics = losses_of(args, [[0, 1, 2]])
    assert_near({name: metrics[name] for name in expected}, expected, roundings=1800)
    assert_near(loss, 0.5 * expected["binary"] + 0.3 * expected["opd"], roundings=1800)
    assert gradient.abs().sum() > 0
    alone, of_the_reward, _ = losses_of(args, [[1]])
    assert_near(alone, -0.5 * shard.fields["raw_reward"][1])
    assert_near(of_the_reward, torch.zeros_like(of_the_reward))  # no reward, no teacher: nothing to learn


def test_a_piece_of_a_trajectory_counts_by_its_tokens(tmp_path: Path) -> None:
    args = arguments(written(tmp_path, HEADER + "def loss(policy_logits):\n    return 0 * policy_logits.sum() + 1.0\n"))
    shard = shard_of()
    shard.fields["rollout_mask_sums"] = [4, 1, 6]
    loss, _ = micro_batch_loss(args, Model(), shard, [0, 1, 2], torch.device("cpu"))  # pyright: ignore[reportArgumentType]
    assert_near(float(loss.detach()), 2 / 4 + 1 + 3 / 6)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def f(policy_logits, labels): ...", "nothing is known for its parameter labels"),
        ("def f(rewards, advantages): ...", "lack policy_logits or student_logprobs"),
        ("def f(policy_logits, /): ...", "policy_logits cannot be given by name"),
        ("def f(args, batch): ...", r"takes neither \(args, batch, logits, sum_of_sample_mean\)"),
        ("f = 3", "f is a int, which cannot be called"),
    ],
)
def test_a_wrong_signature_has_its_clause(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "custom_loss.py"
    file.write_text(text)
    path = f"{file}:f"
    with pytest.raises(FormError, match=f"^clause loss-1: .*{says}"):
        load_custom_loss(path)
    problems = wrong_signatures(Arguments(custom_loss_function_path=path))
    if "def" in text:
        assert len(problems) == 1
        assert problems[0].startswith(f"--custom-loss-function-path {path}: clause loss-1: ")


def test_a_loss_without_a_scalar_has_its_clause(tmp_path: Path) -> None:
    args = arguments(written(tmp_path, "def loss(policy_logits):\n    return policy_logits\n"))
    with pytest.raises(FormError, match=r"clause loss-3: .* it returned a tensor \(2,\)"):
        losses_of(args, [[0]])


def test_whole_logits_never_exist_and_the_memory_budget_knows(tmp_path: Path) -> None:
    path = written(tmp_path, CLIPPED)
    assert not reads_whole_logits(Arguments(loss_type="custom_loss", custom_loss_function_path=path))
    (tmp_path / "plain.py").write_text("def loss(args, batch, logits, reduce): ...")
    assert reads_whole_logits(Arguments(loss_type="custom_loss", custom_loss_function_path=f"{tmp_path}/plain.py:loss"))
