"""From the flags to what a training rank does around its steps: start, passes, checkpoints, pushes. Nothing is trained."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lab.testkit.trainer import shards, train_data, trainer_args
from slime.args import Arguments
from slime.backends.fsdp_utils import critic
from slime.backends.fsdp_utils.critic import FSDPCriticActor
from slime.backends.fsdp_utils.train_step import log_prob_pass
from slime.backends.trainer import actor as module
from slime.backends.trainer import rank
from slime.backends.trainer.actor import TrainActor
from slime.backends.trainer.micro_batch import micro_batch_loss
from slime.backends.trainer.rollout_data import RolloutShard
from slime.backends.trainer.schedule import Schedule
from slime.weight_sync.broadcast import BroadcastWeightSync
from tests.helpers.checkpoints import config_only, published


class Rank(TrainActor):  # pyright: ignore[reportImplicitAbstractClass]
    """A rank that writes, reads and computes nothing, and remembers what it was asked for."""

    def __init__(self, args: Arguments) -> None:
        super().__init__(1, 0, "localhost", 1)
        self.args = args
        self.asked: list[Any] = []
        self.schedule = Schedule(args, 8)

    def _write(self, root: Path, iteration: int, meta: dict[str, Any]) -> Path:
        return root / str(iteration)

    def _read(self, folder: Path) -> dict[str, Any]:
        self.asked.append(folder.name)
        earlier = Schedule(trainer_args("", lr=0.5), None)
        return {"weight_version": 4, "rollout_id": 2, "schedule": earlier.state_dict()}

    def _weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(())

    def _log_probs(self, data: RolloutShard, *, reference: bool) -> list[torch.Tensor]:
        self.asked.append("reference" if reference else "policy")
        return [torch.zeros(length) for length in data.fields["response_lengths"]]

    def _policy_pass(self, data: RolloutShard) -> tuple[list[torch.Tensor], list[torch.Tensor] | None]:
        return self._log_probs(data, reference=False), None


Rank.__abstractmethods__ = frozenset()


@pytest.fixture
def one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.dist, "barrier", lambda: None)
    monkeypatch.setattr(rank, "check_same_parameters", lambda args, meta: None)
    monkeypatch.setattr(rank, "read_meta", lambda folder: {})


def test_where_the_weights_come_from(tmp_path: Path) -> None:
    start, reference = config_only(tmp_path / "start"), config_only(tmp_path / "reference")
    args = trainer_args("base", load=None, ref_load=None)
    assert Rank(args)._start_weights() == "base"
    args.ref_load = str(reference)
    assert Rank(args)._start_weights() == str(reference)
    args.load = str(start)
    assert Rank(args)._start_weights() == str(start)


def test_a_critic_begins_with_the_backbone_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    restored: list[Path] = []
    monkeypatch.setattr(critic, "build_critic", lambda args, folder, device: built.append(folder))
    monkeypatch.setattr(critic, "build_optimizer", lambda *_: None)
    for name in ("_set_model", "_seed"):
        monkeypatch.setattr(FSDPCriticActor, name, lambda *_: None)
    monkeypatch.setattr(FSDPCriticActor, "_begin", lambda self, args: vars(self).update(args=args, device=None))
    monkeypatch.setattr(FSDPCriticActor, "_restore", lambda self, folder: restored.append(folder))
    other = config_only(tmp_path / "other")
    for folder in (None, str(other)):
        actor = FSDPCriticActor(1, 0, "localhost", 1)
        actor.init(trainer_args("policy", load=None, ref_load=None, critic_load=folder))
        actor.load_checkpoint(0)
    assert built == ["policy", str(other)]
    assert restored == []


def test_the_first_rollout_and_the_schedule_after_a_checkpoint(tmp_path: Path, one_rank: None) -> None:
    published(tmp_path / "save", 3)
    at = {"save": str(tmp_path / "save"), "lr": 2.0}
    assert Rank(trainer_args("", **at))._load_checkpoint() == 0
    assert Rank(trainer_args("", **at, start_rollout_id=7))._load_checkpoint() == 7
    resumed = Rank(trainer_args("", **at, resume=True))
    assert (resumed._load_checkpoint(), resumed.asked, resumed.schedule.lr()) == (3, ["iter_0000003"], 2.0)
    assert Rank(trainer_args("", **at, resume=True, start_rollout_id=9))._load_checkpoint() == 9
    loaded = Rank(trainer_args("", load=at["save"], lr=2.0, use_checkpoint_lr_scheduler=True))
    assert (loaded._load_checkpoint(), loaded.asked, loaded.schedule.lr()) == (3, ["iter_0000003"], 0.5)


def test_what_a_checkpoint_leaves_behind(tmp_path: Path, one_rank: None, monkeypatch: pytest.MonkeyPatch) -> None:
    published_as, exported = [], []
    monkeypatch.setattr(module.checkpoint_folder, "publish", lambda *given: published_as.append(given))
    monkeypatch.setattr(module, "export_hf", lambda weights, source, target, dtype: exported.append((target, dtype)))
    args = trainer_args("m", save=str(tmp_path), save_keep=5)
    monkeypatch.setattr(Rank, "_meta", lambda self, rollout_id: {})
    Rank(args).save(7)
    assert published_as == []
    Rank(args).publish(7)
    assert (published_as, exported) == ([(tmp_path, 8, [])], [])
    args.save_hf, args.train_dtype = str(tmp_path / "hf-{rollout_id}"), "bfloat16"
    Rank(args).save(7)
    assert exported == [(tmp_path / "hf-7", torch.bfloat16)]


def test_the_critics_checkpoints_go_to_their_own_folder(
    tmp_path: Path, one_rank: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []
    monkeypatch.setattr("slime.backends.trainer.critic.checkpoint_folder.publish", lambda *given: done.append(given))
    critic = FSDPCriticActor.__new__(FSDPCriticActor)
    critic.rank = 0
    critic.args = Arguments(save=str(tmp_path), critic_save=str(tmp_path / "critic"), save_keep=2)
    critic.publish(4)
    assert done == [(tmp_path / "critic", 5, [])]


@pytest.mark.parametrize(
    ("flags", "passes"),
    [
        ({}, ["policy"]),
        ({"compute_advantages_and_returns": False, "loss_type": "custom_loss"}, []),
        ({"loss_type": "sft_loss"}, []),
        ({"use_rollout_logprobs": True}, []),
        ({"use_kl_loss": True}, ["policy", "reference"]),
        ({"kl_coef": 0.1, "advantage_estimator": "reinforce_plus_plus"}, ["policy", "reference"]),
    ],
)
def test_the_passes_before_the_steps(flags: dict[str, Any], passes: list[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "compute_advantages", lambda args, fields, total: (fields["log_probs"],) * 2)
    args = trainer_args("", max_tokens_per_gpu=200, **flags)
    made = Rank(args)
    made.prepare(0, shards(args, train_data(3), 1)[0])
    assert sorted(made.asked) == sorted(passes)


def test_the_pass_divides_by_the_temperature_in_chunks() -> None:
    seen = []

    class Model(torch.nn.Module):
        def forward(self, batch: Any, **given: Any) -> tuple[torch.Tensor, torch.Tensor]:
            seen.append(given)
            rows = torch.zeros(len(batch.targets))
            return rows, rows

    args = trainer_args("", max_tokens_per_gpu=200, log_probs_chunk_size=3, rollout_temperature=0.4)
    model: Any = Model()
    log_prob_pass(args, model, RolloutShard(shards(args, train_data(2), 1)[0]), torch.device("cpu"))
    assert seen == [{"temperature": 0.4, "chunk_size": 3}]


def sum_of_logits(args: Arguments, batch: dict[str, Any], logits: torch.Tensor, reduce: Any) -> Any:
    """A loss of a method folder."""
    return logits.sum(), {}


def test_the_loss_is_that_of_the_flag() -> None:
    def model(batch: Any, *, want_logits: bool = False, **_: Any) -> Any:
        rows = torch.full((len(batch.targets),), -2.0)
        return torch.ones(1, 3, 4) if want_logits else (rows, rows)

    data = {"tokens": [[1, 2, 3]], "response_lengths": [1], "loss_masks": [[1]], "total_lengths": [3]}
    data |= {"rewards": [1.0], "rollout_log_probs": [[-2.0]]}
    found = {}
    for loss_type in ("policy_loss", "sft_loss", "custom_loss"):
        path = f"{__name__}.sum_of_logits" if loss_type == "custom_loss" else None
        args = trainer_args("", loss_type=loss_type, custom_loss_function_path=path)
        shard = RolloutShard(shards(args, data, 1)[0])
        shard.set_computed("log_probs", [torch.tensor([-2.0])])
        shard.set_computed("advantages", [torch.tensor([3.0])])
        found[loss_type] = float(micro_batch_loss(args, model, shard, [0], torch.device("cpu"))[0])
    assert found == {"policy_loss": -3.0, "sft_loss": 2.0, "custom_loss": 12.0}


def test_a_push_has_buckets_of_the_flags_size() -> None:
    args = Arguments(update_weight_buffer_size=4096)
    sync = BroadcastWeightSync(args, device=torch.device("cpu"), address="127.0.0.1")
    weights = [(f"w{number}", torch.zeros(512)) for number in range(5)]  # 2048 bytes each
    assert [len(bucket.names) for bucket in sync._buffer.fill(weights)] == [2, 2, 1]


def test_ranks_wait_for_each_other_as_long_as_the_flag_says(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    waits: list[timedelta] = []
    before = dict(os.environ)
    monkeypatch.setattr(rank.dist, "init_process_group", lambda *_, **options: given.update(options))
    monkeypatch.setattr(rank, "hosted_store", lambda *_, **options: SimpleNamespace(set_timeout=waits.append))
    monkeypatch.setattr(rank.torch, "set_num_threads", lambda count: None)
    made = Rank(trainer_args("", distributed_timeout_minutes=7))
    assert made._join() == torch.device("cpu")
    assert [given["timeout"], *waits] == [timedelta(minutes=7)] * 2
    assert os.environ == before, "who gives the port owns the process"


def test_the_length_of_the_schedule_is_that_of_the_run() -> None:
    made = Rank(trainer_args("", num_rollout=5, num_steps_per_rollout=2, lr_decay_style="linear"))
    made._set_model(None, SimpleNamespace())
    assert made.schedule.decay_steps == 10
