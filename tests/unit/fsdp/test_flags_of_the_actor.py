"""From the flags to what a training rank does around its steps: start, passes, checkpoints, pushes. Nothing is trained."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lab.testkit.trainer import shards, train_data, trainer_args
from slime.args import Arguments
from slime.backends.fsdp_utils.backend import log_prob_pass
from slime.backends.trainer import process, rank
from slime.backends.trainer.micro_batch import RolloutShard, micro_batch_loss
from slime.backends.trainer.process import RankProcess
from slime.backends.trainer.rank import CriticRank, start_weights
from slime.backends.trainer.schedule import Schedule
from slime.weight_sync.broadcast import BroadcastWeightSync
from tests.helpers.checkpoints import config_only, published
from tests.helpers.idle_ranks import Alone, idle_rank


@pytest.fixture
def one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank.dist, "barrier", lambda: None)
    monkeypatch.setattr(rank, "check_same_parameters", lambda args, meta: None)
    monkeypatch.setattr(rank.checkpoint_folder, "read_meta", lambda folder: {})


def test_where_the_weights_come_from(tmp_path: Path) -> None:
    start, reference = config_only(tmp_path / "start"), config_only(tmp_path / "reference")
    args = trainer_args("base", load=None, ref_load=None)
    assert idle_rank(args).backend.start == "base"
    args.ref_load = str(reference)
    assert start_weights(args) == str(reference)
    args.load = str(start)
    assert start_weights(args) == str(start)


def test_a_critic_begins_with_the_backbone_that_is_named(tmp_path: Path) -> None:
    built: list[str] = []
    read: list[Any] = []

    def make(args: Arguments, start: str, device: torch.device, schedule: Schedule) -> Any:
        built.append(start)
        return SimpleNamespace(read=read.append)

    class Critic(CriticRank):
        make_backend = staticmethod(make)

    other = config_only(tmp_path / "other")
    for folder in (None, str(other)):
        critic = Critic(1, 0, "localhost", 1)
        critic.process = Alone(1, 0, "localhost", 1)
        critic.init(trainer_args("policy", load=None, ref_load=None, critic_load=folder))
        critic.load_checkpoint(0)
    assert built == ["policy", str(other)]
    assert read == []


def test_the_first_rollout_and_the_schedule_after_a_checkpoint(tmp_path: Path, one_rank: None) -> None:
    published(tmp_path / "save", 3)
    at = {"save": str(tmp_path / "save"), "lr": 2.0}
    assert idle_rank(trainer_args("", **at)).start == 0
    assert idle_rank(trainer_args("", **at, start_rollout_id=7)).start == 7
    resumed = idle_rank(trainer_args("", **at, resume=True))
    assert (resumed.start, resumed.backend.asked) == (3, ["iter_0000003"])
    assert resumed.backend.schedule.lr() == 2.0
    assert idle_rank(trainer_args("", **at, resume=True, start_rollout_id=9)).start == 9
    loaded = idle_rank(trainer_args("", load=at["save"], lr=2.0, use_checkpoint_lr_scheduler=True))
    assert (loaded.start, loaded.backend.asked, loaded.backend.schedule.lr()) == (3, ["iter_0000003"], 0.5)


def test_what_a_checkpoint_leaves_behind(tmp_path: Path, one_rank: None, monkeypatch: pytest.MonkeyPatch) -> None:
    published_as, exported = [], []
    monkeypatch.setattr(rank.checkpoint_folder, "publish", lambda *given: published_as.append(given))
    monkeypatch.setattr(rank, "export_hf", lambda weights, source, target, dtype: exported.append((target, dtype)))
    args = trainer_args("m", save=str(tmp_path), save_keep=5)
    idle_rank(args).save(7)
    assert published_as == []
    idle_rank(args).publish(7)
    assert (published_as, exported) == ([(tmp_path, 8, [])], [])
    args.save_hf, args.train_dtype = str(tmp_path / "hf-{rollout_id}"), "bfloat16"
    idle_rank(args).save(7)
    assert exported == [(tmp_path / "hf-7", torch.bfloat16)]


def test_the_critics_checkpoints_go_to_their_own_folder(
    tmp_path: Path, one_rank: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Any] = []
    monkeypatch.setattr(rank.checkpoint_folder, "publish", lambda *given: done.append(given))
    critic = CriticRank(1, 0, "localhost", 1)
    critic.args = Arguments(save=str(tmp_path), critic_save=str(tmp_path / "critic"), save_keep=2)
    critic.publish(4)
    assert done == [(tmp_path / "critic", 5, [])]


CUSTOM = {"loss_type": "custom_loss", "custom_loss_function_path": f"{__name__}.sum_of_logits"}


@pytest.mark.parametrize(
    ("flags", "passes"),
    [
        ({}, ["policy"]),
        ({"compute_advantages_and_returns": False, **CUSTOM}, []),
        ({"loss_type": "sft_loss"}, []),
        ({"use_rollout_logprobs": True}, []),
        ({"use_kl_loss": True}, ["policy", "reference"]),
        ({"kl_coef": 0.1, "advantage_estimator": "reinforce_plus_plus"}, ["policy", "reference"]),
    ],
)
def test_the_passes_before_the_steps(flags: dict[str, Any], passes: list[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(rank, "compute_advantages", lambda args, fields, total: (fields["log_probs"],) * 2)
    args = trainer_args("", max_tokens_per_gpu=200, **flags)
    made = idle_rank(args)
    made.prepare(0, shards(args, train_data(3), 1)[0])
    assert made.backend.asked == passes


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
    args = Arguments(train_dtype="float32", update_weight_buffer_size=4096)
    sync = BroadcastWeightSync(args, device=torch.device("cpu"), address="127.0.0.1")
    weights = [(f"w{number}", torch.zeros(512)) for number in range(5)]  # 2048 bytes each
    assert [len(bucket.names) for bucket in sync._buffer.fill(weights)] == [2, 2, 1]


def test_ranks_wait_for_each_other_as_long_as_the_flag_says(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    waits: list[timedelta] = []
    before = dict(os.environ)
    monkeypatch.setattr(process.dist, "init_process_group", lambda *_, **options: given.update(options))
    monkeypatch.setattr(process, "hosted_store", lambda *_, **options: SimpleNamespace(set_timeout=waits.append))
    monkeypatch.setattr(process.torch, "set_num_threads", lambda count: None)
    made = RankProcess(1, 0, "localhost", 1)
    assert made.join(trainer_args("", distributed_timeout_minutes=7)) == torch.device("cpu")
    assert [given["timeout"], *waits] == [timedelta(minutes=7)] * 2
    assert os.environ == before, "who gives the port owns the process"


def test_the_length_of_the_schedule_is_that_of_the_run() -> None:
    args = trainer_args("", num_rollout=5, num_steps_per_rollout=2, lr_decay_style="linear")
    assert Schedule.of_run(args).decay_steps == 10
