"""bfloat16 compute with float32 weights, log probabilities and moments; and offloading that does not change a bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from groundwork.network import find_available_port
from lab.testkit import trainer
from slime.backends.fsdp_utils.backend import log_prob_pass
from slime.backends.trainer.micro_batch import RolloutShard
from slime.logprobs.response_rows import log_probs_of_head
from tests.helpers import trainer_ranks
from tests.helpers.reference_steps import sft_steps
from tests.helpers.resume_run import moments
from tests.helpers.tolerance import LOGITS, MODEL, assert_near


def test_bfloat16_gives_float32_log_probabilities_of_its_own_logits(
    tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logits are compared with those of the same matrix product: a product of another shape may round another way."""
    of_own_logits: list[torch.Tensor] = []

    def with_reference(pairs: Any, targets: Any, **settings: Any) -> Any:
        [(hidden, weight)] = pairs
        logits = hidden.to(weight.dtype).detach() @ weight.detach().T
        assert logits.dtype == torch.bfloat16
        table = torch.log_softmax(logits.double() / settings["temperature"], dim=-1)
        of_own_logits.append(table.gather(1, targets[:, None])[:, 0])
        return log_probs_of_head(pairs, targets, **settings)

    monkeypatch.setattr("slime.logprobs.response_rows.log_probs_of_head", with_reference)
    args = trainer.trainer_args(
        tiny_random_model, train_dtype="bfloat16", micro_batch_size=1, use_dynamic_batch_size=False
    )
    shard = RolloutShard(trainer.shards(args, trainer.train_data(), 1)[0])
    actor, _ = trainer_ranks.start_actor(args, 0, 1, find_available_port())
    try:
        assert {parameter.dtype for parameter in actor.backend.model.parameters()} == {torch.float32}
        found = log_prob_pass(args, actor.backend.model, shard, actor.device)
        actor.train(0, trainer.shards(args, trainer.train_data(), 1)[0])
        assert {value.dtype for value in moments(actor).values()} == {torch.float32}
    finally:
        actor.shutdown()
    assert_near(torch.cat(found), torch.cat(of_own_logits[: len(found)]))  # bfloat16 would be off by 1e-2
    model = AutoModelForCausalLM.from_pretrained(tiny_random_model, dtype=torch.bfloat16)
    for tokens, response, values in zip(shard.tokens, shard.fields["response_lengths"], found, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits[0, -response - 1 : -1]
        table = torch.log_softmax(logits.float() / args.rollout_temperature, dim=-1)
        theirs = table.gather(1, torch.tensor(tokens)[-response:, None])[:, 0]
        assert values.dtype == torch.float32
        assert_near(values, theirs, dtype=torch.bfloat16, roundings=8, magnitude=LOGITS)


def test_three_steps_of_adamw_are_those_of_float64(tiny_random_model: Path) -> None:
    # Where Adam divides by a gradient near zero, rounding of float32 would be seen as a step; a larger epsilon bounds that.
    args = trainer.trainer_args(tiny_random_model, loss_type="sft_loss", adam_eps=1e-4)
    data = trainer.train_data()
    expected = sft_steps(args, data, 3)
    actor, _ = trainer_ranks.start_actor(args, 0, 1, find_available_port())
    try:
        metrics = [actor.train(step, trainer.shards(args, data, 1)[0]) for step in range(3)]
        after = trainer_ranks.full_parameters(actor)
    finally:
        actor.shutdown()
    assert_near([found["train/loss"] for found in metrics if found], expected["losses"], roundings=MODEL)
    assert_near(after, expected["after"], roundings=MODEL)


TURNS: dict[str, tuple[int, dict[str, Any]]] = {
    "kl": (2, {"use_kl_loss": True, "kl_loss_coef": 0.1, "ref_update_interval": 1, "train_dtype": "bfloat16"}),
    "lora": (1, {"use_lora": True, "update_weight_mode": "adapter"}),
}


@pytest.mark.parametrize("name", TURNS)
def test_a_trainer_that_leaves_the_device_between_rollouts_is_the_one_that_stays(
    tiny_random_model: Path, tmp_path: Path, name: str
) -> None:
    ranks, changes = TURNS[name]
    arguments = (changes, str(tiny_random_model), str(tmp_path / "x"))
    if ranks == 1:
        trainer_ranks.stay_and_leave(0, 1, *arguments)
    else:
        trainer.on_ranks(ranks, trainer_ranks.stay_and_leave, *arguments)


@pytest.mark.parametrize("use_lora", [False, True])
def test_offloading_to_the_cpu_changes_no_bit(tiny_random_model: Path, use_lora: bool) -> None:
    def outcome(offload: bool) -> tuple[dict[str, Any], ...]:
        args = trainer.trainer_args(tiny_random_model, fsdp_cpu_offload=offload, use_lora=use_lora)
        actor, _ = trainer_ranks.start_actor(args, 0, 1, find_available_port())
        try:
            for step in range(2):
                actor.train(step, trainer.shards(args, trainer.train_data(seed=step), 1)[0])
            return trainer_ranks.full_parameters(actor), moments(actor)
        finally:
            actor.shutdown()

    for held, offloaded in zip(outcome(False), outcome(True), strict=True):
        assert set(held) == set(offloaded)
        assert held
        assert all(torch.equal(value, offloaded[name]) for name, value in held.items())
