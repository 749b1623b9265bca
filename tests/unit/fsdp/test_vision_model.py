"""A vision-language model in the trainer: log probabilities of packed and padded samples with images are the model's own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lab.testkit import tiny_random, trainer
from slime.backends.fsdp_utils.backend import build_critic, log_prob_pass, value_pass
from slime.backends.fsdp_utils.model import gather, lora_layers, token_kinds
from slime.backends.megatron_utils.train_step import log_prob_pass as megatron_log_prob_pass
from slime.backends.trainer.micro_batch import RolloutShard, micro_batch_loss
from tests.helpers import tiny_vision, trainer_ranks, vision_ranks, vision_samples
from tests.helpers.other_rounding import OtherRounding
from tests.helpers.tolerance import LOGITS, MODEL, assert_near, tolerance

START, PAD, WORD = 7, 8, 1
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_vision.build(tmp_path_factory.mktemp("vision") / "model")


@pytest.fixture(scope="module")
def expected(model: Path) -> list[torch.Tensor]:
    data = vision_samples.train_data(model)
    reference = vision_samples.reference_model(model)
    with torch.no_grad():
        return [vision_samples.reference_log_probs(reference, data, i, 0.7) for i in range(len(data["tokens"]))]


@pytest.fixture
def start(model: Path) -> Iterator[Any]:
    """A function that starts an actor with the arguments given."""
    actors = []

    def start_one(path: Path = model, **changes: Any) -> Any:
        args = trainer.trainer_args(path, **{"loss_type": "sft_loss", **changes})
        actors.append(trainer_ranks.start_actor(args)[0])
        return actors[-1]

    yield start_one
    for actor in actors:
        actor.shutdown()


def in_order(values: list[torch.Tensor], partition: list[int]) -> list[torch.Tensor]:
    return [values[partition.index(position)] for position in range(len(values))]


@pytest.mark.parametrize(
    ("changes", "cap"),
    [({}, 1000), ({}, 30), ({"pack_sequences": False}, 1000), ({"attn_implementation": "eager"}, 1000)],
    ids=["packed", "packed, some micro-batches of text", "padded", "eager"],
)
@pytest.mark.parametrize("processor", [contextlib.nullcontext, OtherRounding])
def test_log_probs_are_those_of_each_sample_alone(
    start, model, expected, changes: dict[str, Any], cap: int, processor: Callable[[], Any]
) -> None:
    actor = start(max_tokens_per_gpu=cap, **changes)
    shard = trainer.shards(actor.args, vision_samples.train_data(model), 1)[0]
    with processor():
        values = log_prob_pass(actor.args, actor.backend.model, RolloutShard(shard), actor.device)
    for ours, theirs in zip(in_order(values, shard["partition"]), expected, strict=True):
        assert_near(ours, theirs, roundings=MODEL, magnitude=LOGITS)


def test_log_probs_of_a_rollout_of_text(start, model) -> None:
    actor = start()
    data = vision_samples.train_data(model, [[]] * 4)
    text = {name: values for name, values in data.items() if name != "multimodal_train_inputs"}
    shard = trainer.shards(actor.args, text, 1)[0]
    values = in_order(
        log_prob_pass(actor.args, actor.backend.model, RolloutShard(shard), actor.device), shard["partition"]
    )
    reference = vision_samples.reference_model(model)
    for index, ours in enumerate(values):
        with torch.no_grad():
            theirs = vision_samples.reference_log_probs(reference, data, index, 0.7)
        assert_near(ours, theirs, roundings=MODEL, magnitude=LOGITS)


def test_bfloat16_is_close(start, model, expected) -> None:
    actor = start(train_dtype="bfloat16", max_tokens_per_gpu=30)
    shard = trainer.shards(actor.args, vision_samples.train_data(model), 1)[0]
    values = log_prob_pass(actor.args, actor.backend.model, RolloutShard(shard), actor.device)
    for ours, theirs in zip(in_order(values, shard["partition"]), expected, strict=True):
        assert_near(ours, theirs, dtype=torch.bfloat16, roundings=8, magnitude=LOGITS)


def test_the_reference_sees_the_images_too(start, model: Path) -> None:
    actor = start(loss_type="policy_loss", use_kl_loss=True, kl_loss_coef=0.1, max_tokens_per_gpu=30)
    data = vision_samples.train_data(model)
    actor.prepare(0, trainer.shards(actor.args, data, 1)[0])
    fields = actor._data.fields
    assert all(torch.equal(*pair) for pair in zip(fields["log_probs"], fields["ref_log_probs"], strict=True))
    assert_near(actor.step(0)["train/kl_loss"], 0.0)


@pytest.mark.parametrize("processor", [contextlib.nullcontext, OtherRounding])
def test_the_critic_sees_the_images_too(start, model: Path, processor: Callable[[], Any]) -> None:
    actor = start()
    critic = build_critic(actor.args, str(model), device=actor.device)
    trainer_ranks.assign(critic.head.weight, torch.linspace(-1, 1, 64)[None])
    shard = RolloutShard(trainer.shards(actor.args, vision_samples.train_data(model), 1)[0])
    with processor():
        values = in_order(value_pass(actor.args, critic, shard, actor.device), shard.partition)
    reference = vision_samples.reference_model(model)
    for index, ours in enumerate(values):
        with torch.no_grad():
            rows = vision_samples.reference_rows(reference, vision_samples.train_data(model), index)
        assert_near(ours, rows @ torch.linspace(-1, 1, 64).double(), roundings=MODEL)


def test_the_images_matter(model: Path, expected) -> None:
    data = vision_samples.train_data(model)
    data["multimodal_train_inputs"][0]["pixel_values"] *= -1
    reference = vision_samples.reference_model(model)
    with torch.no_grad():
        other = vision_samples.reference_log_probs(reference, data, 0, 0.7)
    assert float((other - expected[0]).abs().max()) > 1000 * tolerance(expected[0], roundings=MODEL, magnitude=LOGITS)


@pytest.mark.parametrize(
    "changes",
    [
        {"max_tokens_per_gpu": 30, "gradient_checkpointing": True},
        {"max_tokens_per_gpu": 1000, "pack_sequences": False},
        {"max_tokens_per_gpu": 30, "use_lora": True},
    ],
    ids=["packed, checkpointing", "padded", "adapters"],
)
def test_gradients_of_tower_and_text_are_the_reference(model: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    changes = {"loss_type": "sft_loss", **changes}
    vision_ranks.gradients(0, 1, str(model), [changes], str(tmp_path / "out.pt"))
    outcome, _ = torch.load(tmp_path / "out.pt", weights_only=False)[0]
    vision_samples.check_gradients(model, trainer.trainer_args(model, **changes), outcome)


def test_a_rollout_of_text_leaves_the_tower_alone(start, model: Path) -> None:
    actor = start()
    before = trainer_ranks.full_parameters(actor)
    actor.train(0, trainer.shards(actor.args, trainer.train_data(), 1)[0])
    after = trainer_ranks.full_parameters(actor)
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert same == {name for name in before if ".visual." in name}


def test_a_run_goes_on_bit_for_bit_from_a_save_before_the_first_image(start, model: Path, tmp_path: Path) -> None:
    actor = start(save=str(tmp_path))
    pictured = trainer.shards(actor.args, vision_samples.train_data(model), 1)[0]
    actor.train(0, trainer.shards(actor.args, trainer.train_data(), 1)[0])
    actor.save(0)
    actor.publish(0)
    actor.train(1, pictured)
    straight = trainer_ranks.full_parameters(actor)
    actor.shutdown()
    resumed = start(load=str(tmp_path))
    assert resumed.backend.optimizer.state, "it goes on from the checkpoint"
    resumed.train(1, pictured)
    after = trainer_ranks.full_parameters(resumed)
    assert all(torch.equal(value, after[name]) for name, value in straight.items())


def test_a_rank_without_a_sample_runs_the_tower_for_nothing(start, model: Path) -> None:
    actor = start()
    shard = RolloutShard(trainer.shards(actor.args, vision_samples.train_data(model), 1)[0])
    loss, metrics = micro_batch_loss(actor.args, actor.backend.model, shard, [], actor.device)
    loss.backward()
    assert metrics == {}
    gradients = trainer_ranks.full_parameters(actor, lambda parameter: parameter.grad)
    assert {name for name in gradients if ".visual." in name}
    assert set(gradients) == set(trainer_ranks.full_parameters(actor))
    assert not any(value.any() for value in gradients.values())


def config() -> Any:
    vision = SimpleNamespace(spatial_merge_size=2)
    return SimpleNamespace(vision_config=vision, vision_start_token_id=START, image_token_id=PAD)


def test_a_placeholder_that_the_policy_wrote_stays_a_token() -> None:
    tokens = [WORD, START, PAD, PAD, WORD, START, PAD, WORD, PAD, START, PAD]
    kinds = token_kinds(config(), tokens, torch.tensor([[1, 2, 4], [1, 2, 2]]))
    assert kinds.tolist() == [0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("tokens", [[START, PAD, WORD], [PAD, PAD, WORD], []])
def test_an_image_without_its_tokens_is_refused(tokens: list[int]) -> None:
    with pytest.raises(ValueError, match="image 1 of 1 of a sample has no place"):
        token_kinds(config(), tokens, torch.tensor([[1, 2, 4]]))


def test_images_for_a_model_of_text_are_refused(start, model: Path, tmp_path: Path) -> None:
    actor = start(tiny_random.build(tmp_path / "text"))
    shard = trainer.shards(actor.args, vision_samples.train_data(model), 1)[0]
    with pytest.raises(ValueError, match="Qwen3Model has no vision tower; use a vision-language model"):
        actor.train(0, shard)


def test_images_are_refused_by_megatron(model: Path) -> None:
    args = trainer.trainer_args(model, train_backend="megatron")
    shard = RolloutShard(trainer.shards(args, vision_samples.train_data(model), 1)[0])
    with pytest.raises(ValueError, match="--train-backend megatron cannot train on; use --train-backend fsdp"):
        megatron_log_prob_pass(args, torch.nn.Identity(), shard, CPU, 600)


def test_adapters_are_in_the_language_model_only(start) -> None:
    actor = start(use_lora=True)
    names = list(lora_layers(actor.backend.model.hf))
    assert len(names) == 2 * 7
    assert all(name.startswith("model.language_model.layers.") for name in names)


def test_a_frozen_tower_stays_as_it_is(start, model: Path) -> None:
    actor = start(freeze_params_name_list=[r"model\.visual\."], max_tokens_per_gpu=30)
    assert not any(".visual." in name for name in trainer_ranks.full_parameters(actor))
    before = {name: gather(value, CPU).clone() for name, value in actor.backend.model.hf.named_parameters()}
    actor.train(0, trainer.shards(actor.args, vision_samples.train_data(model), 1)[0])
    for name, value in actor.backend.model.hf.named_parameters():
        assert torch.equal(gather(value, CPU), before[name]) == (".visual." in name), name
