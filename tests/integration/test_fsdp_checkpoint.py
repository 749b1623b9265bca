"""Checkpoints move between numbers of ranks and are refused where they do not fit; exports load. See also test_resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from groundwork.checkpoint_names import LATEST
from groundwork.network import find_available_port
from lab.testkit import trainer
from slime.checkpoints import checkpoint_folder
from slime.checkpoints.versions import superseded
from slime.exceptions import CheckpointError
from tests.helpers import trainer_ranks
from tests.helpers.tolerance import LOGITS, MODEL, assert_near

BASE: dict[str, Any] = {"use_opd": True, "lr_decay_style": "cosine", "lr_warmup_iters": 2, "entropy_coef": 0.01}
# Adam turns the rounding of a gradient near zero into a step of the learning rate; a larger epsilon bounds that.
BASE |= {"adam_eps": 1e-4}


def run(tmp_path: Path, name: str, model: Path, steps: list[int], *, ranks: int = 1, **changes: Any) -> dict[str, Any]:
    """Train ``steps`` and return what the rank wrote; one rank runs in this process."""
    out = tmp_path / f"{name}.pt"
    port = find_available_port()
    changes = BASE | {"save": str(tmp_path / "save")} | changes
    if ranks == 1:
        trainer_ranks.train_save_train(0, 1, port, changes, str(model), steps, str(out))
    else:
        trainer.on_ranks(ranks, trainer_ranks.train_save_train, port, changes, str(model), steps, str(out))
    return torch.load(out, weights_only=False)


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return set(a) == set(b) and all(torch.equal(a[name], b[name]) for name in a)


def test_checkpoints_move_between_one_and_two_ranks(tmp_path: Path, tiny_random_tied_model: Path) -> None:
    model = tiny_random_tied_model
    one = run(tmp_path, "one", model, [0])
    two = run(tmp_path, "two", model, [1], ranks=2, resume=True)
    assert two["start"] == 1
    assert equal(one["after"], two["before"])
    assert json.loads((tmp_path / "save/iter_0000002/meta.json").read_text())["weight_version"] == 1 + 1
    back = run(tmp_path, "back", model, [2], resume=True)
    assert back["start"] == 2
    assert equal(two["after"], back["before"])
    straight = run(tmp_path, "straight", model, [0, 1, 2], save=str(tmp_path / "straight"))
    assert_near(back["after"], straight["after"], roundings=MODEL)


def test_lora_moves_between_one_and_two_ranks(tmp_path: Path, tiny_random_model: Path) -> None:
    one = run(tmp_path, "one", tiny_random_model, [0], use_lora=True)
    two = run(tmp_path, "two", tiny_random_model, [1], ranks=2, use_lora=True, resume=True)
    assert equal(one["after"], two["before"])
    adapter = tmp_path / "save/iter_0000002/adapter/adapter_model.safetensors"
    assert adapter.exists()
    back = run(tmp_path, "back", tiny_random_model, [2], use_lora=True, resume=True)
    assert equal(two["after"], back["before"])
    straight = run(tmp_path, "straight", tiny_random_model, [0, 1, 2], use_lora=True, save=str(tmp_path / "straight"))
    assert_near(back["after"], straight["after"], roundings=MODEL)


def test_exports_load_in_other_programs(tmp_path: Path, tiny_random_model: Path) -> None:
    from peft import PeftModel

    args = trainer.trainer_args(
        tiny_random_model, use_lora=True, save=str(tmp_path / "save"), save_hf=str(tmp_path / "hf-{rollout_id}")
    )
    actor, _ = trainer_ranks.start_actor(args, 0, 1, find_available_port())
    try:
        trainer_ranks.randomise_lora(actor)
        folder = Path(actor.save(4))
        actor.publish(4)
        shard = trainer.shards(args, trainer.train_data(count=1), 1)[0]
        ids = torch.tensor([shard["tokens"][0]])
        from slime.backends.fsdp_utils.backend import log_prob_pass
        from slime.backends.trainer.micro_batch import RolloutShard

        ours = log_prob_pass(args, actor.backend.model, RolloutShard(shard), actor.device)[0]
    finally:
        actor.shutdown()
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "hf-4", dtype=torch.float32)
    base = AutoModelForCausalLM.from_pretrained(tiny_random_model, dtype=torch.float32)
    adapted = PeftModel.from_pretrained(base, folder / "adapter")
    assert AutoTokenizer.from_pretrained(tmp_path / "hf-4").chat_template
    for model in (merged, adapted):
        with torch.no_grad():
            table = torch.log_softmax(model(ids).logits[0] / args.rollout_temperature, dim=-1)
        response = shard["response_lengths"][0]
        theirs = table[-response - 1 : -1].gather(1, ids[0, -response:, None])[:, 0]
        assert_near(ours, theirs, roundings=MODEL, magnitude=LOGITS)


def test_an_interrupted_save_leaves_the_previous_one(tmp_path: Path) -> None:
    for iteration in (1, 2, 3):
        folder = checkpoint_folder.folder_of(tmp_path, iteration)
        folder.mkdir()
        (folder / "meta.json").write_text("{}")
    assert checkpoint_folder.find(tmp_path) is None
    checkpoint_folder.publish(tmp_path, 2, ())
    (tmp_path / "iter_0000004.tmp").mkdir()
    assert checkpoint_folder.find(tmp_path) == checkpoint_folder.folder_of(tmp_path, 2)
    checkpoint_folder.publish(tmp_path, 3, superseded(tmp_path, 3, keep=2))
    assert sorted(path.name for path in tmp_path.glob("iter_*")) == ["iter_0000002", "iter_0000003", "iter_0000004.tmp"]
    (tmp_path / LATEST).write_text("9")
    with pytest.raises(FileNotFoundError, match="iter_0000009"):
        checkpoint_folder.find(tmp_path)


def test_wrong_checkpoints_are_refused(tmp_path: Path, tiny_random_model: Path) -> None:
    with pytest.raises(CheckpointError, match="start without --resume"):
        run(tmp_path, "none", tiny_random_model, [0], resume=True)
    torch.distributed.destroy_process_group()
    run(tmp_path, "full", tiny_random_model, [0])
    with pytest.raises(CheckpointError, match="remove --use-lora"):
        run(tmp_path, "lora", tiny_random_model, [1], resume=True, use_lora=True)
    torch.distributed.destroy_process_group()


def test_a_step_without_a_finite_gradient_changes_nothing(tmp_path: Path, tiny_random_model: Path) -> None:
    args = trainer.trainer_args(tiny_random_model, train_dtype="bfloat16", lr=1e-2, loss_type="sft_loss")
    actor, _ = trainer_ranks.start_actor(args, 0, 1, find_available_port())
    try:
        data = trainer.train_data()
        losses = [actor.train(i, trainer.shards(args, data, 1)[0])["train/loss"] for i in range(4)]
        assert losses[-1] < losses[0] - 0.5, "bfloat16 compute learns"
        before = trainer_ranks.full_parameters(actor)
        actor.args.loss_type = "policy_loss"
        data["rewards"][0] = float("nan")
        metrics = actor.train(4, trainer.shards(args, data, 1)[0])
        assert metrics["train/skipped_steps"] == 1.0
        assert equal(before, trainer_ranks.full_parameters(actor))
        assert actor.backend.schedule.steps == 4
    finally:
        actor.shutdown()
