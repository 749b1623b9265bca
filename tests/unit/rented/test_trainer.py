"""The trainer's promises at a stand-in of the service: what is saved, undone, resumed, published, and what an interruption leaves."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import torch

from groundwork.process import Stopped
from openclaw.runtime.kept_versions import kept_versions
from slime.args import Arguments
from slime.backends.tinker_utils import trainer as module
from slime.backends.tinker_utils.service import Meter, Sampler
from slime.backends.tinker_utils.trainer import TinkerTrainer
from slime.checkpoints.versions import saved_versions
from slime.exceptions import CheckpointError, RankLostError
from slime.rollout.train_data import convert, split_by_dp
from slime.utils.probes import Probe
from tests.unit.rented.test_datums import arguments, sample

tinker = pytest.importorskip("tinker", reason="install the tinker extra")


class Future:
    """What the package returns: an answer, or the error that asking gives."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work

    def result(self, timeout: float | None = None) -> Any:
        return self._work()


class Model:
    """A training client: its weights are a number that each step raises by the sum of the advantages."""

    def __init__(self, service: Service, weights: float = 0.0, moments: int = 0) -> None:
        self.service, self.weights, self.moments, self.gradient = service, weights, moments, 0.0
        service.models += 1

    def forward_backward(self, data: list[Any], loss: str, config: dict[str, float]) -> Future:
        def work() -> Any:
            self.service.called("forward_backward")
            self.gradient += sum(sum(datum.loss_fn_inputs["advantages"].tolist()) for datum in data)
            outputs = [
                {"logprobs": torch.tensor(d.loss_fn_inputs["logprobs"].tolist()) + self.service.drift} for d in data
            ]
            return SimpleNamespace(metrics={"loss:sum": -self.gradient}, loss_fn_outputs=outputs)

        return Future(work)

    def optim_step(self, adam: Any) -> Future:
        def work() -> Any:
            self.service.called("optim_step")
            self.weights, self.gradient, self.moments = self.weights + self.gradient, 0.0, self.moments + 1
            self.service.rates.append(adam.learning_rate)
            return SimpleNamespace(metrics={"grad_norm:mean": 0.5})

        return Future(work)

    def save_state(self, name: str, ttl_seconds: int | None = None, user_metadata: Any = None) -> Future:
        def work() -> Any:
            self.service.called("save_state")
            path = f"tinker://run/weights/{name}"
            self.service.states[path] = (self.weights, self.moments, user_metadata or {}, ttl_seconds)
            return SimpleNamespace(path=path)

        return Future(work)

    def load_state_with_optimizer(self, path: str) -> Future:
        def work() -> None:
            self.service.called("load_state")
            self.weights, self.moments = self.service.states[path][:2]

        return Future(work)

    def save_weights_and_get_sampling_client(self) -> Future:
        return Future(lambda: SamplingClient(self.weights))


class SamplingClient:
    """Scores every token with minus the weights that it was made of."""

    def __init__(self, weights: float) -> None:
        self.weights = weights

    def sample(self, prompt: Any, number: int, parameters: Any, **keywords: Any) -> Future:
        ids = prompt.to_ints()
        reply = SimpleNamespace(tokens=[7, 8], stop_reason="stop")
        scores = [None, *([-self.weights] * (len(ids) - 1))]
        answer = SimpleNamespace(sequences=[reply], prompt_logprobs=scores, prompt_cache_hit_tokens=0)
        return Future(lambda: answer)


class Service:
    """The service's client and what it keeps."""

    model, address = "tiny", "http://service"

    def __init__(self) -> None:
        self.client, self.meter = self, Meter({"train": 1_000_000.0})
        self.states, self.calls, self.rates = dict[str, Any](), list[str](), list[float]()
        self.gone = list[str]()
        self.fails: dict[str, Exception] = {}
        self.drift, self.models = 0.0, 0

    def called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fails:
            raise self.fails.pop(name)

    def create_lora_training_client(self, model: str, rank: int, seed: int, train_unembed: bool) -> Future:
        return Future(lambda: Model(self))

    def create_training_client_from_state_with_optimizer(self, path: str) -> Future:
        return Future(lambda: Model(self, *self.states[path][:2]))

    def sampler(self, client: Any, version: str) -> Any:
        return Sampler(client, version, self.meter)

    def base(self, model: str) -> Any:
        return self.sampler(SamplingClient(0.0), "base")

    def forget(self, path: str) -> None:
        self.gone.append(path)

    def train_tokens(self, tokens: int) -> None:
        self.meter.add("train", tokens)


class Rented:
    """The service and what serves."""

    def __init__(self) -> None:
        self.service = Service()
        self.served: list[Any] = []
        self.policy = SimpleNamespace(serve=self.served.append)


def run_args(folder: Path, **changes: Any) -> Arguments:
    values = {
        "use_opd": False,
        "save": str(folder),
        "save_keep": 2,
        "fuses": None,
        "run_dir": str(folder),
        "resume": False,
        "tinker_epochs": 1,
        "tinker_start": None,
    }
    return arguments(**{**values, "use_checkpoint_lr_scheduler": False, **changes})


def started(folder: Path, rented: Rented | None = None, **changes: Any) -> tuple[TinkerTrainer, Rented]:
    rented = rented or Rented()
    made = TinkerTrainer(run_args(folder, **changes), rented)  # type: ignore[arg-type]
    made.start = made.init()  # type: ignore[attr-defined]
    made.update_weights()
    return made, rented


def batch(args: Arguments, number: int = 0) -> Any:
    return split_by_dp(convert(args, [sample(number, 5, 4), sample(number + 3, 3, 2)]), 1, args)


def step(trainer: TinkerTrainer, rollout: int) -> dict[str, Any]:
    return trainer.train(rollout, batch(trainer._args), [])


def weights_of(trainer: TinkerTrainer) -> float:
    return trainer._now.weights  # type: ignore[attr-defined]


def test_a_step_is_published_under_the_next_version(tmp_path: Path) -> None:
    trainer, rented = started(tmp_path)
    assert trainer.versions() == ("0", "0")
    metrics = step(trainer, 0)
    assert (metrics["train/skipped_steps"], metrics["train/grad_norm"], metrics["train/lr-pg_0"]) == (0.0, 0.5, 1e-3)
    assert trainer.versions() == ("0", "1")
    assert trainer.update_weights() == "1"
    assert [sampler.version for sampler in rented.served] == ["0", "1"]
    assert metrics["tinker/train_tokens"] == metrics["tinker/dollars"] == 8 + 4


def test_a_refused_step_leaves_weights_moments_and_what_serves(tmp_path: Path) -> None:
    trainer, rented = started(tmp_path)
    step(trainer, 0)
    trainer.update_weights()
    before = weights_of(trainer)
    trainer.take_snapshot()
    step(trainer, 1)
    probe = [Probe([1, 2], [3])]
    served, candidate = trainer.ask(True, probe), trainer.ask(False, probe)
    assert served[0].log_probs == [-before]
    assert candidate[0].log_probs == [-weights_of(trainer)]
    assert trainer.update_weights() == "1", "nothing undecided serves"
    trainer.undo_steps()
    assert (weights_of(trainer), trainer._now.moments) == (before, 1)  # type: ignore[attr-defined]
    assert trainer.versions() == ("1", "1")
    assert [sampler.version for sampler in rented.served] == ["0", "1"]


def test_a_snapshot_costs_nothing_when_the_state_is_saved(tmp_path: Path) -> None:
    trainer, rented = started(tmp_path)
    step(trainer, 0)
    trainer.save(0)
    trainer.take_snapshot()
    trainer.keep_steps()
    step(trainer, 1)
    trainer.take_snapshot()
    assert [state[3] for state in rented.service.states.values()] == [module.DAY, None, module.DAY]


def test_a_resumed_run_goes_on_with_weights_schedule_and_version(tmp_path: Path) -> None:
    first, rented = started(tmp_path)
    for rollout in range(2):
        step(first, rollout)
        first.update_weights()
    folder = Path(first.save(1))
    first.publish(1)
    meta = json.loads((folder / "meta.json").read_text())
    assert rented.service.states[meta["tinker_path"]][2] == {"weight_version": "2", "rollout_id": "1"}
    step(first, 2)  # lost with the process

    service = Service()
    service.states = rented.service.states
    again = Rented()
    again.service = service
    second, _ = started(tmp_path, again, resume=True)
    assert second.start == 2  # type: ignore[attr-defined]
    assert second.versions() == ("2", "2")
    assert second._now.moments == 2  # type: ignore[attr-defined]
    step(second, 2)
    assert weights_of(second) == weights_of(first)


def test_old_states_are_deleted_at_the_service(tmp_path: Path) -> None:
    trainer, rented = started(tmp_path)
    for rollout in range(3):
        step(trainer, rollout)
        trainer.update_weights()
        trainer.save(rollout)
        trainer.publish(rollout)
    assert rented.service.gone == [next(path for path in rented.service.states if "rollout-0000001" in path)]


def test_nothing_is_saved_of_half_a_step(tmp_path: Path) -> None:
    trainer, rented = started(tmp_path)
    rented.service.fails["optim_step"] = tinker.APIConnectionError(request=None)  # type: ignore[arg-type]
    with pytest.raises(RankLostError, match="could not take the step"):
        step(trainer, 0)
    with pytest.raises(CheckpointError, match="interrupted"):
        trainer.save(0)


class Away:
    """A future of a service that does not answer."""

    def __init__(self) -> None:
        self.came = threading.Event()

    def result(self) -> Any:
        self.came.wait()


@pytest.mark.parametrize("where", ["optim_step", "sample"])
def test_a_signal_ends_a_wait_for_a_service_that_is_away(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STOP_SECONDS", 0.05)
    monkeypatch.setattr(module, "POLL_SECONDS", 0.02)
    trainer, _ = started(tmp_path)
    away = Away()
    trainer._stop = True  # type: ignore[assignment]
    if where == "optim_step":
        trainer._now.optim_step = lambda adam: away  # type: ignore[method-assign, assignment]
        with pytest.raises(Stopped):
            step(trainer, 0)
        with pytest.raises(CheckpointError, match="interrupted"):
            trainer.save(0)
    else:
        monkeypatch.setattr(SamplingClient, "sample", lambda *_, **__: away)
        with pytest.raises(Stopped):
            trainer.ask(False, [Probe([1, 2], [3])])
    away.came.set()


def test_steps_that_nobody_decided_about_are_not_saved(tmp_path: Path) -> None:
    trainer, rented = started(tmp_path)
    trainer.take_snapshot()
    step(trainer, 0)
    rented.service.fails["load_state"] = tinker.APIConnectionError(request=None)  # type: ignore[arg-type]
    with pytest.raises(RankLostError):
        trainer.undo_steps()
    with pytest.raises(CheckpointError, match="nobody decided"):
        trainer.save(0)


def test_what_the_service_refuses_is_skipped_and_leaves_everything(tmp_path: Path) -> None:
    trainer, rented = started(tmp_path, tinker_epochs=2)
    step(trainer, 0)
    trainer.update_weights()
    before = weights_of(trainer)
    response = httpx.Response(400, request=httpx.Request("POST", "http://service"))
    rented.service.fails["optim_step"] = tinker.BadRequestError("the gradient is inf", response=response, body=None)
    metrics = step(trainer, 1)
    assert metrics["train/skipped_steps"] == 1.0
    assert len(metrics["steps"]) == 1
    assert (weights_of(trainer), trainer._now.gradient, trainer.versions()) == (before, 0.0, ("1", "1"))  # type: ignore[attr-defined]
    rented.service.drift = float("nan")
    assert step(trainer, 2)["train/skipped_steps"] == 1.0
    rented.service.drift = 0.0
    assert step(trainer, 3)["train/skipped_steps"] == 0.0


def test_a_failure_of_any_kind_at_the_service_is_a_loss(tmp_path: Path) -> None:
    trainer, rented = started(tmp_path)
    for error in (TimeoutError("asked for minutes"), RuntimeError("poisoned"), ValueError("no result")):
        rented.service.fails["forward_backward"] = error
        with pytest.raises(RankLostError, match=type(error).__name__):
            step(trainer, 0)


def test_a_refusal_needs_no_new_model_at_the_service(tmp_path: Path) -> None:
    trainer, rented = started(tmp_path)
    for rollout in range(3):
        trainer.take_snapshot()
        step(trainer, rollout)
        trainer.undo_steps()
    assert rented.service.calls.count("load_state") == 3
    assert rented.service.models == 1


def test_a_state_that_the_service_will_delete_is_not_relied_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, rented = started(tmp_path)
    trainer.take_snapshot()
    trainer.keep_steps()
    trainer.take_snapshot()
    assert rented.service.calls.count("save_state") == 1
    trainer.keep_steps()
    later = time.monotonic() + 2 * module.FRESH_SECONDS
    monkeypatch.setattr(module.time, "monotonic", lambda: later)
    trainer.take_snapshot()
    assert rented.service.calls.count("save_state") == 2


def test_a_checkpoint_that_is_written_again_leaves_no_state_behind(tmp_path: Path) -> None:
    trainer, rented = started(tmp_path)
    step(trainer, 0)
    first = json.loads((Path(trainer.save(0)) / "meta.json").read_text())["tinker_path"]
    trainer.save(0)
    trainer.publish(0)
    assert rented.service.gone == [first]


def test_a_step_without_anything_to_learn_has_fewer_metrics(tmp_path: Path) -> None:
    trainer, _ = started(tmp_path, num_steps_per_rollout=2)
    args = trainer._args
    samples = [sample(0, 5, 4), sample(3, 3, 2, reward=0.0)]
    metrics = trainer.train(0, split_by_dp(convert(args, samples), 1, args), [])
    assert [one["train/skipped_steps"] for one in metrics["steps"]] == [0.0, 0.0]
    assert metrics["train/grad_norm"] == 0.5


def test_a_fuse_holds_the_step_back_with_its_gradient(tmp_path: Path) -> None:
    trainer, rented = started(tmp_path, fuses=["train/train_rollout_kl>0.1"])
    step(trainer, 0)
    trainer.update_weights()
    before = weights_of(trainer)
    rented.service.drift = 2.0
    metrics = step(trainer, 1)
    assert metrics["train/fuse_held"] == 1.0
    assert (weights_of(trainer), trainer._now.gradient) == (before, 0.0)  # type: ignore[attr-defined]
    assert trainer.versions() == ("1", "1")
    assert rented.service.calls.count("optim_step") == 1
    rented.service.drift = 0.0
    assert step(trainer, 2)["train/fuse_held"] == 0.0
    assert trainer.update_weights() == "2"


def test_a_batch_without_anything_to_learn_changes_nothing(tmp_path: Path) -> None:
    trainer, rented = started(tmp_path)
    args = trainer._args
    data = split_by_dp(convert(args, [sample(0, 5, 4, reward=0.0)]), 1, args)
    metrics = trainer.train(0, data, [])
    assert metrics["train/skipped_steps"] == 0.0
    assert trainer.versions() == ("0", "0")
    assert "forward_backward" not in rented.service.calls


def test_epochs_repeat_the_steps(tmp_path: Path) -> None:
    trainer, rented = started(tmp_path, tinker_epochs=3)
    step(trainer, 0)
    assert rented.service.calls.count("optim_step") == 3


def test_going_back_gives_a_new_version(tmp_path: Path) -> None:
    trainer, _ = started(tmp_path)
    for rollout in range(2):
        step(trainer, rollout)
        trainer.update_weights()
        trainer.save(rollout)
    trainer.restore(1)
    assert trainer._now.moments == 1  # type: ignore[attr-defined]
    assert trainer.update_weights() == "3"


def test_a_state_of_another_program_is_a_start(tmp_path: Path) -> None:
    rented = Rented()
    rented.service.states["tinker://other/weights/x"] = (1.5, 4, {}, None)
    trainer, _ = started(tmp_path, rented, tinker_start="tinker://other/weights/x")
    assert weights_of(trainer) == 1.5
    folder = tmp_path / "ours"
    (folder / "iter_0000001").mkdir(parents=True)
    (folder / "iter_0000001" / "meta.json").write_text(json.dumps({"rollout_id": 0}))
    with pytest.raises(CheckpointError, match="no state of a service"):
        started(tmp_path, rented, load=str(folder / "iter_0000001"))


def test_weights_that_the_service_has_are_not_offered_here(tmp_path: Path) -> None:
    trainer, _ = started(tmp_path / "checkpoints")
    step(trainer, 0)
    trainer.update_weights()
    trainer.save(0)
    trainer.publish(0)
    [saved] = saved_versions(tmp_path / "checkpoints")
    assert str(saved.at_service).startswith("tinker://run/weights/rollout-0000001-")
    assert kept_versions(tmp_path, "", per_person=False) == ["0"]
