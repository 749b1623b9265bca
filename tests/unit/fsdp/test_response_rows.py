"""Losses on response rows: the numbers of whole logits, without any; who gets which; what reads logits is told so."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import combine_loss
import pytest
import torch
from combine_loss import combine_loss_function
from openclaw_combine_method import Config
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lab.testkit.trainer import shards, trainer_args
from slime.algorithms.losses.custom import custom_loss, from_response_rows, reads_response_rows
from slime.algorithms.losses.hybrid_distillation import hybrid_loss
from slime.algorithms.losses.practice import practice_loss
from slime.algorithms.losses.reduce import make_reducer
from slime.algorithms.losses.topk_distillation import forward_topk_distillation_loss, topk_distillation_loss
from slime.args import Arguments
from slime.backends.fsdp_utils.model import PolicyModel
from slime.backends.trainer.micro_batch import RolloutShard, micro_batch_loss
from slime.logprobs.packed_logits import get_log_probs_and_entropy, get_responses
from slime.logprobs.response_rows import ResponseRows

VOCABULARY, WIDTH = 60, 8
# Prompt and response of each sample; one has no response.
LENGTHS = [(3, 4), (2, 1), (4, 0), (5, 9)]
CPU = torch.device("cpu")


def case(supports: list[int | None]) -> tuple[dict[str, Any], Tensor, Tensor]:
    """A batch with every stream, hidden states ``[T, H]`` and a head; ``supports`` has the K of each sample's teacher."""
    generator = torch.Generator().manual_seed(4)
    totals, responses = [p + r for p, r in LENGTHS], [r for _, r in LENGTHS]

    def streams() -> list[Tensor]:
        return [-3.0 - torch.rand(r, generator=generator) for r in responses]

    def top(k: int | None, r: int) -> tuple[Tensor | None, Tensor | None]:
        if k is None:
            return None, None
        scores = torch.log_softmax(torch.randn(r, VOCABULARY, generator=generator), -1)
        found = scores.topk(k)
        return found.values, found.indices

    teachers = [top(k, r) for k, r in zip(supports, responses, strict=True)]
    batch = {
        "unconcat_tokens": [torch.randint(0, VOCABULARY, (total,), generator=generator) for total in totals],
        **{"total_lengths": totals, "response_lengths": responses, "teacher_log_probs": streams()},
        **{"loss_masks": [torch.ones(r) for r in responses], "advantages": streams()},
        **{"log_probs": streams(), "rollout_log_probs": streams(), "ref_log_probs": streams()},
        "teacher_topk_log_probs": [values for values, _ in teachers],
        "teacher_topk_indices": [ids for _, ids in teachers],
        "rollout_topk_log_probs": [None if values is None else values - 0.2 for values, _ in teachers],
    }
    hidden = torch.randn(sum(totals), WIDTH, generator=generator)
    return batch, hidden, torch.randn(VOCABULARY, WIDTH, generator=generator) * 0.5


def rows_of(batch: dict[str, Any]) -> list[int]:
    """Rows of the packed tokens that predict a response token."""
    found, end = [], 0
    for total, response in zip(batch["total_lengths"], batch["response_lengths"], strict=True):
        end += total
        found += range(end - response - 1, end - 1)
    return found


def outcome(function: Any, supports: list[int | None], *, on_rows: bool, chunk: int) -> list[Tensor]:
    batch, hidden, weight = case(supports)
    args = trainer_args("", loss_type="custom_loss", opd_kl_coef=0.7, entropy_coef=0.02, log_probs_chunk_size=chunk)
    leaves = [hidden.requires_grad_(), weight.requires_grad_()]
    logits: Any = (hidden @ weight.T).unsqueeze(0)
    if on_rows:
        logits = ResponseRows([(hidden[rows_of(batch)], weight)], chunk)
    reduce = make_reducer(False, batch["response_lengths"], batch["loss_masks"])
    loss, metrics = custom_loss(function, args, batch, logits, reduce)
    return [loss, *(metrics[name] for name in sorted(metrics)), *torch.autograd.grad(loss, leaves)]


MARKED = [topk_distillation_loss, forward_topk_distillation_loss, hybrid_loss, practice_loss, combine_loss_function]


@pytest.mark.parametrize("function", MARKED, ids=lambda function: function.__name__)
@pytest.mark.parametrize("supports", [[4, 4, 4, 4], [3, None, 5, 2]], ids=["equal K", "other K and none"])
def test_rows_give_the_loss_and_gradients_of_whole_logits(
    function: Callable[..., Any], supports: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(combine_loss, "own_config", lambda: Config(w_opd=0.4))
    assert reads_response_rows(function)
    right = outcome(function, supports, on_rows=False, chunk=-1)
    for on_rows, chunk in ((True, 1), (True, 5), (True, 1000), (False, 2)):
        for mine, expected in zip(outcome(function, supports, on_rows=on_rows, chunk=chunk), right, strict=True):
            torch.testing.assert_close(mine, expected, atol=1e-5, rtol=1e-5)


def test_a_marked_loss_that_reads_logits_is_told_so() -> None:
    batch, hidden, weight = case([4, 4, 4, 4])
    layout = {name: batch[name] for name in ("unconcat_tokens", "total_lengths", "response_lengths")}
    rows: Any = ResponseRows([(hidden[rows_of(batch)], weight)], 4)
    with pytest.raises(TypeError, match="remove the mark"):
        list(get_responses(rows, args=Arguments(rollout_temperature=1.0), **layout))


def test_responses_at_temperature_one_are_the_logits_themselves() -> None:
    batch, hidden, weight = case([4, 4, 4, 4])
    layout = {name: batch[name] for name in ("unconcat_tokens", "total_lengths", "response_lengths")}
    logits = (hidden @ weight.T).unsqueeze(0)
    [first, *_] = [rows for rows, _ in get_responses(logits, args=Arguments(rollout_temperature=1.0), **layout)]
    assert first.untyped_storage().data_ptr() == logits.untyped_storage().data_ptr()
    [other, *_] = [rows for rows, _ in get_responses(logits, args=Arguments(rollout_temperature=0.5), **layout)]
    torch.testing.assert_close(other, first * 2.0)


class Policy(torch.nn.Module):
    """An embedding is the last hidden state."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(6)
        self.embedding, self.head = (
            torch.nn.Embedding(vocabulary, WIDTH),
            torch.nn.Linear(WIDTH, vocabulary, bias=False),
        )
        for parameter in self.parameters():
            torch.nn.init.normal_(parameter, generator=generator)
        self.base_model = lambda input_ids, **_: SimpleNamespace(last_hidden_state=self.embedding(input_ids))

    def get_output_embeddings(self) -> torch.nn.Module:
        return self.head


given: list[Any] = []


def whole(args: Arguments, batch: dict[str, Any], logits: Any, reduce: Any) -> Any:
    """The sum of the log probabilities, and what the trainer gave."""
    given.append(logits)
    layout = {name: batch[name] for name in ("unconcat_tokens", "total_lengths", "response_lengths")}
    _, found = get_log_probs_and_entropy(logits, args=args, **layout)
    loss = reduce(torch.cat(found["log_probs"]))
    return loss, {"mean": loss.detach()}


@from_response_rows
def of_rows(args: Arguments, batch: dict[str, Any], logits: Any, reduce: Any) -> Any:
    """The same from response rows."""
    return whole(args, batch, logits, reduce)


def data(lengths: list[tuple[int, int]], vocabulary: int, top: int = 0) -> dict[str, Any]:
    """Training data of one micro-batch of samples with ``lengths``."""
    generator = torch.Generator().manual_seed(7)
    responses = [response for _, response in lengths]
    found: dict[str, Any] = {
        "tokens": [torch.randint(0, vocabulary, (p + r,), generator=generator).tolist() for p, r in lengths],
        **{"total_lengths": [p + r for p, r in lengths], "response_lengths": responses},
        **{"loss_masks": [[1] * r for r in responses], "rewards": [1.0] * len(lengths)},
    }
    if top:
        scores = [torch.log_softmax(torch.randn(r, vocabulary, generator=generator), -1).topk(top) for r in responses]
        found["teacher_topk_log_probs"] = [one.values for one in scores]
        found["teacher_topk_indices"] = [one.indices for one in scores]
    return found


def arguments(path: str, chunk: int) -> Arguments:
    """Of a custom loss whose samples all fit a micro-batch."""
    chosen = {"loss_type": "custom_loss", "custom_loss_function_path": path}
    return trainer_args("", **chosen, max_tokens_per_gpu=10**6, log_probs_chunk_size=chunk)


def loss_of(path: str, lengths: list[tuple[int, int]]) -> tuple[Tensor, Policy]:
    """The loss of a micro-batch of ``lengths`` under a small policy; without samples that of a filler."""
    args, policy = arguments(path, 4), Policy(VOCABULARY)
    shard = RolloutShard(shards(args, data(lengths or [(2, 1)], VOCABULARY), 1)[0])
    indices = list(range(len(lengths)))
    return micro_batch_loss(args, PolicyModel(policy, "sdpa"), shard, indices, CPU)[0], policy


def test_a_marked_loss_gets_rows_and_any_other_the_logits_it_was_promised() -> None:
    outcomes = []
    for name in ("whole", "of_rows"):
        given.clear()
        loss, policy = loss_of(f"{__name__}.{name}", LENGTHS)
        outcomes.append([loss, *torch.autograd.grad(loss, list(policy.parameters()))])
        if name == "whole":
            assert given[0].shape == (1, sum(p + r for p, r in LENGTHS), VOCABULARY)
        else:
            assert len(given[0]) == sum(r for _, r in LENGTHS)
    for one, other in zip(*outcomes, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("lengths", [[], [(3, 0), (2, 0)]], ids=["filler", "empty responses"])
def test_a_micro_batch_without_response_tokens_gives_zero_with_a_gradient_path(lengths: list[tuple[int, int]]) -> None:
    loss, policy = loss_of(f"{__name__}.of_rows", lengths)
    assert float(loss.detach()) == 0.0
    gradients = torch.autograd.grad(loss, list(policy.parameters()))
    assert not any(gradient.any() for gradient in gradients)


class LargestResult(TorchDispatchMode):
    """Remembers the number of elements of the largest result of any operation."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(value, Tensor):
                self.elements = max(self.elements, value.numel())
        return result


@pytest.mark.parametrize("name", ["topk_distillation_loss", "forward_topk_distillation_loss"])
@pytest.mark.parametrize(("prompt", "response"), [(1400, 100), (1, 1499)])
def test_top_k_distillation_never_has_the_logits_of_a_sequence(name: str, prompt: int, response: int) -> None:
    vocabulary, chunk = 4000, 64
    path = f"slime.algorithms.losses.topk_distillation.{name}"
    args = arguments(path, chunk)
    model = PolicyModel(Policy(vocabulary), "sdpa")
    shard = RolloutShard(shards(args, data([(prompt, response)], vocabulary, top=50), 1)[0])
    with LargestResult() as largest:
        micro_batch_loss(args, model, shard, [0], CPU)[0].backward()
    assert largest.elements <= chunk * vocabulary
