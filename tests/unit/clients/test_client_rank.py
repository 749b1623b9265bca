"""Models that programs train: their gradients are those of plain torch, and no model changes another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lab.testkit import trainer
from slime.clients.losses import OF_TOKENS
from slime.clients.models import LOSS_INPUTS, DataError, Datum, ModelPlan, complete
from slime.clients.rank import ClientRank
from slime.exceptions import CheckpointError
from tests.helpers.client_ranks import ADAM, PLAN, data_of, gradients, on_a_rank, passed, start
from tests.helpers.group_fixtures import leave


@pytest.fixture
def actor(tiny_random_model: Path, tmp_path: Path) -> Iterator[ClientRank]:
    rank = start(tiny_random_model, tmp_path)
    yield rank
    rank.shutdown()


__all__ = ["leave"]


def step(actor: ClientRank, model: str, seed: int, loss: str = "cross_entropy") -> float:
    passed(actor, model, data_of(seed), loss)
    return actor.optimizer_step(model, ADAM)


def scored(actor: ClientRank, model: str) -> list[bytes]:
    return [each.tobytes() for each in passed(actor, model, data_of(9), forward_only=True).log_probs]


# Against plain torch


FORMULAS: dict[str, Any] = {
    "cross_entropy": lambda p, w, q, a: -(w * p),
    "importance_sampling": lambda p, w, q, a: -(p - q).exp() * a,
    "ppo": lambda p, w, q, a: -torch.minimum((p - q).exp() * a, (p - q).exp().clamp(0.8, 1.2) * a),
    "cispo": lambda p, w, q, a: -(p - q).exp().clamp(0.8, 1.2).detach() * a * p,
    "dro": lambda p, w, q, a: -(p * a - 0.025 * (p - q) ** 2),
}


def reference(folder: Path, base: Path, data: list[Datum], loss: str) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Return log probabilities and gradients of PEFT's model in float64, one sequence at a time."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    whole = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64, attn_implementation="eager")
    model = PeftModel.from_pretrained(whole, str(folder), is_trainable=True).double()
    found = []
    for datum in data:
        logits = model(torch.from_numpy(datum.tokens)[None]).logits[0]
        p = torch.log_softmax(logits, -1).gather(-1, torch.from_numpy(datum.targets)[:, None])[:, 0]
        w, q, a = (torch.from_numpy(datum.inputs[name]).double() for name in ("weights", "logprobs", "advantages"))
        FORMULAS[loss](p, w, q, a).sum().backward()
        found.append(p.detach().numpy())
    return found, {
        name.removeprefix("base_model.model."): parameter.grad.numpy()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


@pytest.mark.parametrize("loss", FORMULAS)
def test_log_probs_and_gradients_are_those_of_plain_torch(
    actor: ClientRank, tiny_random_model: Path, tmp_path: Path, loss: str
) -> None:
    plan = ModelPlan(3, 5, ("q_proj", "down_proj"))
    actor.create("m", plan)
    step(actor, "m", 4)  # B is zero at first
    (tmp_path / "adapter").mkdir()
    actor.export("m", str(tmp_path / "adapter"))
    data = data_of(6)
    log_probs, expected = reference(tmp_path / "adapter", tiny_random_model, data, loss)
    first = passed(actor, "m", data[:2], loss)
    rest = passed(actor, "m", data[2:], loss)  # gradients add up
    for ours, theirs in zip([*first.log_probs, *rest.log_probs], log_probs, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)
    largest = max(abs(value).max() for value in expected.values())
    found = gradients(actor)
    for name, value in expected.items():
        ours = found[name]
        ours = ours[:3] if ".lora_A." in name else ours[:, :3]
        np.testing.assert_allclose(ours, value, atol=2e-5 * largest, err_msg=name)
    learning = {name for name, value in found.items() if abs(value).max() > 0}
    assert learning <= set(expected), "what has no rank or is no chosen layer never learns"


def test_a_loss_is_a_sum_and_a_forward_pass_leaves_no_gradient(actor: ClientRank) -> None:
    actor.create("m", PLAN)
    data = data_of(1)
    found = passed(actor, "m", data, forward_only=True)
    expected = -sum(float((datum.inputs["weights"] * p).sum()) for datum, p in zip(data, found.log_probs, strict=True))
    assert found.loss == pytest.approx(expected, rel=1e-5)
    assert not any(value.any() for value in gradients(actor).values())


def test_an_adam_step_is_torchs(actor: ClientRank) -> None:
    actor.create("m", PLAN)
    name, parameter = next(
        (name, value) for name, value in actor.backend.model.hf.named_parameters() if ".lora_B." in name
    )
    twin = torch.nn.Parameter(parameter.detach().clone())
    optimizer = torch.optim.AdamW([twin], lr=0.02, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1)
    for seed in (1, 2):
        passed(actor, "m", data_of(seed))
        every = gradients(actor)
        norm = float(np.sqrt(sum((value.astype(np.float64) ** 2).sum() for value in every.values())))
        clip = norm / 2
        twin.grad = torch.from_numpy(every[name]) * (clip / (norm + 1e-6))
        optimizer.step()
        adam = ADAM._replace(learning_rate=0.02, beta1=0.8, beta2=0.9, eps=1e-6, weight_decay=0.1, clip=clip)
        assert actor.optimizer_step("m", adam) == pytest.approx(norm, rel=1e-5)
        torch.testing.assert_close(parameter.detach(), twin.detach(), atol=1e-6, rtol=1e-5)


# Nobody changes another


def test_models_never_change_each_other(tiny_random_model: Path, tmp_path: Path) -> None:
    def alone(model: str, seeds: list[int]) -> list[bytes]:
        rank = start(tiny_random_model, tmp_path)
        rank.create(model, plans[model])
        for seed in seeds:
            step(rank, model, seed)
        found = scored(rank, model)
        rank.shutdown()
        return found

    plans = {"a": PLAN, "b": ModelPlan(1, 3, ("v_proj",)), "c": ModelPlan(4, 7, ("up_proj", "q_proj"))}
    expected = {model: alone(model, [first, first + 1]) for model, first in (("a", 10), ("b", 20), ("c", 30))}
    rank = start(tiny_random_model, tmp_path)
    for model, plan in plans.items():
        rank.create(model, plan)
    for offset in (0, 1):
        for model, first in (("a", 10), ("c", 30), ("b", 20)):
            passed(rank, model, data_of(first + offset))
        for model in ("b", "a", "c"):  # gradients wait while others are in
            rank.optimizer_step(model, ADAM)
    assert {model: scored(rank, model) for model in plans} == expected
    rank.drop("a")
    assert scored(rank, "b") == expected["b"]
    rank.shutdown()


def test_a_gradient_that_is_not_finite_takes_no_step(actor: ClientRank) -> None:
    actor.create("m", PLAN)
    step(actor, "m", 1)
    before = scored(actor, "m")
    data = data_of(2)
    data[0].inputs["weights"][0] = np.inf
    passed(actor, "m", data)
    assert not np.isfinite(actor.optimizer_step("m", ADAM))
    assert scored(actor, "m") == before
    assert np.isfinite(step(actor, "m", 3)), "the gradient is gone"


# Folders


def test_what_was_written_goes_on_bit_for_bit(actor: ClientRank, tmp_path: Path) -> None:
    actor.create("m", PLAN)
    step(actor, "m", 1)
    passed(actor, "m", data_of(2))
    (tmp_path / "state").mkdir()
    actor.write("m", str(tmp_path / "state"))
    actor.optimizer_step("m", ADAM)
    step(actor, "m", 3)
    assert actor.read("same", str(tmp_path / "state")) == PLAN
    actor.optimizer_step("same", ADAM)
    step(actor, "same", 3)
    assert scored(actor, "same") == scored(actor, "m")
    actor.read("training", str(tmp_path / "state"), "training")
    step(actor, "training", 3)
    actor.read("weights", str(tmp_path / "state"), "weights")
    step(actor, "weights", 3)
    assert len({tuple(scored(actor, name)) for name in ("m", "training", "weights")}) == 3


def test_a_folder_of_other_adapters_is_refused(actor: ClientRank, tmp_path: Path) -> None:
    actor.create("m", PLAN)
    (tmp_path / "state").mkdir()
    actor.write("m", str(tmp_path / "state"))
    before = scored(actor, "m")
    note = tmp_path / "state" / "model.json"
    found = json.loads(note.read_text())
    note.write_text(json.dumps(found | {"adapters": found["adapters"] | {"rank": 64}}))
    with pytest.raises(CheckpointError, match="--lora-rank 64"):
        actor.read("n", str(tmp_path / "state"))
    note.write_text(json.dumps(found | {"hf_checkpoint": "/models/other"}))
    with pytest.raises(CheckpointError, match="of the base /models/other"):
        actor.read("n", str(tmp_path / "state"))
    with pytest.raises(CheckpointError, match="cannot be read"):
        actor.read("n", str(tmp_path / "nothing"))
    assert scored(actor, "m") == before


def test_two_ranks_give_what_one_gives(tiny_random_model: Path, tmp_path: Path) -> None:
    found = []
    for ranks in (1, 2):
        out = tmp_path / str(ranks)
        out.mkdir()
        trainer.on_ranks(ranks, on_a_rank, str(tiny_random_model), str(out))
        found.append(json.loads((out / "found.json").read_text()))
    assert found[0]["norms"] == pytest.approx(found[1]["norms"], rel=1e-4)
    for one, two in zip(found[0]["log_probs"], found[1]["log_probs"], strict=True):
        for ours, theirs in zip(one, two, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-4)


# What is refused before a rank sees it


def one(**inputs: list[float]) -> list[Datum]:
    ids = np.array([3, 4])
    return [Datum(ids, ids, {name: np.array(values, np.float32) for name, values in inputs.items()})]


PAIR = {"logprobs": [-1.0, -1.0], "advantages": [1.0, 1.0]}


@pytest.mark.parametrize(
    ("data", "loss", "config", "says"),
    [
        (one(), "gspo", {}, "'gspo' is not offered here; use one of cross_entropy, importance_sampling"),
        (one(**PAIR), "ppo", {"beta": 1.0}, "ppo has no setting 'beta'; its settings: clip_low_threshold"),
        (one(**PAIR), "ppo", {"clip_low_threshold": "low"}, "is a number"),
        (one(), "cross_entropy", {"weights": 2.0}, "has no setting 'weights'; its settings: none"),
        (one(), "ppo", {}, "datum 0 has no logprobs, which the loss ppo needs"),
        (one(mask=[1.0, 1.0]), "cross_entropy", {}, "no input 'mask'; its inputs: weights"),
        ([], "cross_entropy", {}, "there are no data"),
        (
            [Datum(np.array([3]), np.array([9]), {})],
            "cross_entropy",
            {},
            "target_tokens has the id 9; this model has 0 to 8",
        ),
        ([Datum(np.array([-1]), np.array([3]), {})], "cross_entropy", {}, "input has the id -1"),
        ([Datum(np.arange(9), np.arange(9), {})], "cross_entropy", {}, "datum 0 has 9 tokens; send 1 to 8"),
        ([Datum(np.empty(0, int), np.empty(0, int), {})], "cross_entropy", {}, "datum 0 has 0 tokens"),
    ],
)
def test_data_that_do_not_fit_say_what_to_send(data: list[Datum], loss: str, config: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=says):
        complete(data, loss, config, vocabulary=9, context=8)


def test_a_datums_own_input_stands_before_a_setting_and_this_before_the_default() -> None:
    own = one(**PAIR, clip_high_threshold=[2.0, 9.0])
    [datum] = complete(own, "ppo", {"clip_low_threshold": 0.5, "clip_high_threshold": 3.0}, vocabulary=9, context=8)
    assert datum.inputs["clip_high_threshold"].tolist() == [2.0, 9.0]
    assert datum.inputs["clip_low_threshold"].tolist() == [0.5, 0.5]
    [datum] = complete(own, "ppo", {}, vocabulary=9, context=8)
    assert datum.inputs["clip_low_threshold"].tolist() == pytest.approx([0.8, 0.8])
    assert set(OF_TOKENS) == set(LOSS_INPUTS)
