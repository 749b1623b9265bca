"""Log probabilities, entropies and gradients in the memory of the logits are those of float64."""

from __future__ import annotations

import pytest
import torch

from slime.backends.trainer import own_logits
from tests.helpers.tolerance import FEW, assert_near

TEMPERATURE, ROWS, VOCABULARY = 0.7, 11, 40
LARGEST = 20.0
"""Of the logits but for the forbidden ones, which add nothing to a sum."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("entropy_grad", [False, True])
@pytest.mark.parametrize("rows_at_once", [1, 4, ROWS])
def test_values_and_gradients_are_those_of_float64(
    dtype: torch.dtype, entropy_grad: bool, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_logits, "CPU_BLOCK_BYTES", 4 * VOCABULARY * rows_at_once)
    generator = torch.Generator().manual_seed(3)
    source = (torch.randn(ROWS, VOCABULARY, generator=generator) * 4).to(dtype).requires_grad_()
    source.data[0, 1:] = -1e9  # one token has all the probability
    ids = torch.randint(0, VOCABULARY, (ROWS,), generator=generator)
    ids[0] = 0
    by_token, by_row = torch.randn(2, ROWS, generator=generator)

    log_probs, entropy = own_logits.log_probs_of_own_logits(
        source.clone(), ids, temperature=TEMPERATURE, entropy_grad=entropy_grad
    )
    assert log_probs.dtype == entropy.dtype == torch.float32
    assert entropy.requires_grad == entropy_grad
    ((log_probs * by_token).sum() + (entropy * by_row).sum()).backward()

    exact = source.detach().double().requires_grad_()
    table = torch.log_softmax(exact / TEMPERATURE, dim=-1)
    right = table.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    spread = -(table.exp() * table).sum(-1)
    ((right * by_token).sum() + ((spread * by_row).sum() if entropy_grad else 0.0)).backward()
    assert_near(log_probs, right, magnitude=LARGEST)
    assert_near(entropy, spread, magnitude=LARGEST)
    assert source.grad is not None
    assert exact.grad is not None
    assert_near(source.grad, exact.grad, dtype=dtype, roundings=FEW if dtype == torch.float32 else 1)


def test_float32_logits_are_worked_on_in_their_own_memory() -> None:
    logits = torch.randn(ROWS, VOCABULARY)
    expected = torch.exp(logits - logits.amax(-1, keepdim=True))
    own_logits.log_probs_of_own_logits(logits, torch.zeros(ROWS, dtype=torch.int64))
    assert_near(logits, expected)


def test_a_second_backward_pass_is_refused_and_not_wrong() -> None:
    logits = torch.randn(ROWS, VOCABULARY, requires_grad=True)
    log_probs, _ = own_logits.log_probs_of_own_logits(logits * 1.0, torch.zeros(ROWS, dtype=torch.int64))
    log_probs.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        log_probs.sum().backward()
