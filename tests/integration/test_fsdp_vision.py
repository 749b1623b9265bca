"""Training a Qwen3-VL on one and two ranks: gradients, checkpoints that move and go on bit for bit, exports that load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText

from groundwork.network import find_available_port
from groundwork.processors import load_processor
from lab.testkit import trainer
from slime.backends.trainer.micro_batch import RolloutShard
from slime.utils.hf_checkpoint import files_of_weights
from tests.helpers import tiny_vision, trainer_ranks, vision_ranks, vision_samples
from tests.helpers.tolerance import LOGITS, MODEL, assert_near

SFT: dict[str, Any] = {"loss_type": "sft_loss"}
SMALL = SFT | {"max_tokens_per_gpu": 30}
# Adam turns the rounding of a gradient near zero into a step of the learning rate; a larger epsilon bounds that.
SMALL |= {"adam_eps": 1e-4}
CASES = {
    "packed": SMALL,
    "padded, checkpointing": SMALL | {"pack_sequences": False, "gradient_checkpointing": True},
    "adapters": SMALL | {"use_lora": True},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vision")


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    return tiny_vision.build(folder / "model")


def trained(folder: Path, name: str, model: Path, rollouts: list[int], **changes: Any) -> dict[str, Any]:
    """Train in this process on one rank."""
    vision_ranks.train(0, 1, str(model), SMALL | changes, rollouts, str(folder / name))
    return torch.load(folder / name, weights_only=False)


@pytest.fixture(scope="module")
def one_rank(folder: Path, model: Path) -> dict[str, Any]:
    """Two rollouts, saved to ``saved``."""
    return trained(folder, "one.pt", model, [0, 1], save=str(folder / "saved"))


@pytest.fixture(scope="module")
def two_ranks(folder: Path, model: Path, one_rank: dict[str, Any]) -> dict[str, Any]:
    """Gradients of the cases, and a third rollout from the checkpoint of one rank."""
    gradients, resumed = str(folder / "gradients.pt"), str(folder / "two.pt")
    goes_on = SMALL | {"load": str(folder / "saved"), "save": str(folder / "moved")}
    calls = [
        ("gradients", (str(model), list(CASES.values()), gradients)),
        ("train", (str(model), goes_on, [2], resumed)),
    ]
    trainer.on_ranks(2, vision_ranks.two_ranks, *calls)
    found = {name: torch.load(path, weights_only=False) for name, path in (("g", gradients), ("resumed", resumed))}
    return found | {"gradients": dict(zip(CASES, found["g"], strict=True))}


@pytest.mark.parametrize("case", CASES)
def test_gradients_on_two_ranks(two_ranks: dict[str, Any], model: Path, case: str) -> None:
    outcome, pictured = two_ranks["gradients"][case]
    first, second = (rank[0] for rank in pictured)
    assert any(one != other for one, other in zip(first, second, strict=True)), "one rank has an image, the other none"
    vision_samples.check_gradients(model, trainer.trainer_args(model, **CASES[case]), outcome)


def test_a_resumed_run_is_bit_equal(folder: Path, model: Path, one_rank: dict[str, Any]) -> None:
    straight = trained(folder, "straight.pt", model, [0, 1, 2], save=str(folder / "straight"))
    resumed = trained(folder, "resumed.pt", model, [2], load=str(folder / "saved"), save=str(folder / "again"))
    assert resumed["start"] == 2
    for one, other in ((one_rank["after"], resumed["before"]), (straight["after"], resumed["after"])):
        assert all(torch.equal(one[name], other[name]) for name in one)
    changed = [name for name, value in straight["before"].items() if not torch.equal(value, straight["after"][name])]
    assert set(changed) == set(straight["before"]), "tower, text and head are all trained"


def test_a_checkpoint_moves_to_two_ranks(
    two_ranks: dict[str, Any], one_rank: dict[str, Any], folder: Path, model: Path
):
    resumed = two_ranks["resumed"]
    assert all(torch.equal(value, resumed["before"][name]) for name, value in one_rank["after"].items())
    straight = trained(folder, "again.pt", model, [2], load=str(folder / "saved"), save=str(folder / "once more"))
    assert_near(resumed["after"], straight["after"], roundings=MODEL)


@pytest.mark.parametrize(("tied", "use_lora"), [(False, True), (True, False)])
def test_an_export_loads_with_its_processor(tmp_path: Path, tied: bool, use_lora: bool) -> None:
    model = tiny_vision.build(tmp_path / "model", tie_word_embeddings=tied)
    args = trainer.trainer_args(model, **SMALL, use_lora=use_lora)
    actor, _ = trainer_ranks.start_actor(args, 0, 1, find_available_port())
    try:
        if use_lora:
            trainer_ranks.randomise_lora(actor)
        data = vision_samples.train_data(model)
        actor.train(0, trainer.shards(args, data, 1)[0])
        shard = trainer.shards(args, data, 1)[0]
        ours = actor.backend.policy_pass(RolloutShard(shard))[0]
        actor.save_hf(str(tmp_path / "hf"))
    finally:
        actor.shutdown()
    assert set(files_of_weights(tmp_path / "hf")) == set(files_of_weights(model))
    exported = AutoModelForImageTextToText.from_pretrained(tmp_path / "hf", dtype=torch.float64)
    with torch.no_grad():
        for index, values in enumerate(ours):
            theirs = vision_samples.reference_log_probs(exported, shard, index, args.rollout_temperature)
            assert_near(values, theirs, roundings=MODEL, magnitude=LOGITS)
    picture = Image.linear_gradient("L").convert("RGB")
    pixels = [
        load_processor(str(path)).image_processor([picture])["pixel_values"][0] for path in (model, tmp_path / "hf")
    ]
    assert (pixels[0] == pixels[1]).all()
