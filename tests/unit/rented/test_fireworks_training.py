"""A run's trainer and gateway at a stand-in of Fireworks: steps, states, hot loads, and the version of every reply."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from groundwork.exceptions import ConfigError
from lab.tiny_models.cache import SHIPPED
from slime.args import Arguments
from slime.exceptions import RankLostError
from slime.utils.probes import Probe

tinker = pytest.importorskip("tinker", reason="install the tinker extra")

from slime.backends.fireworks_utils import control, deployment, http  # noqa: E402
from slime.backends.fireworks_utils.deployment import read  # noqa: E402
from slime.backends.fireworks_utils.service import FireworksService  # noqa: E402
from slime.backends.fireworks_utils.training import parts  # noqa: E402
from slime.backends.tinker_utils.datums import datum_of  # noqa: E402
from slime.backends.tinker_utils.service import RefusedError  # noqa: E402
from slime.backends.tinker_utils.trainer import Rented, TinkerTrainer  # noqa: E402
from tests.helpers.fireworks import KEY, MODEL, REPLY, SHAPE, Fireworks  # noqa: E402
from tests.unit.rented.test_trainer import run_args, step  # noqa: E402


@pytest.fixture
def fireworks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fireworks]:
    monkeypatch.setattr(control, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(deployment, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(deployment, "LOADING_PAUSE", 0.01)
    monkeypatch.setattr(http, "PATIENCE_SECONDS", 0.2)
    with Fireworks() as service:
        monkeypatch.setenv("FIREWORKS_BASE_URL", service.address)
        monkeypatch.setenv("FIREWORKS_API_KEY", KEY)
        yield service


def args_of(folder: Path, **changes: Any) -> Arguments:
    values = {
        **{"run_dir": str(folder), "tinker_model": MODEL, "tinker_judge_model": None, "tinker_prices": None},
        **{"hf_checkpoint": str(SHIPPED), "rollout_max_context_len": 512, "prm_enable": True, "lora_rank": 8},
        **{"fireworks_training_shape": SHAPE, "fireworks_deployment": None, "fireworks_gpus": None},
        **{"fireworks_keep": False, "fireworks_wait_minutes": 1.0},
    }
    return run_args(folder / "checkpoints", **{**values, **changes})


class Running:
    """A run's rented service with its trainer, which serves version 0."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        args = args_of(folder, **changes)
        self.service = FireworksService(args)
        self.rented = Rented(args, self.service)
        self.rented.__enter__()
        self.trainer: TinkerTrainer = self.rented.trainer(args)
        self.start = self.trainer.init()
        self.trainer.update_weights()

    def ask(self, **changes: Any) -> dict[str, Any]:
        """One reply of the address at which the gateway asks."""
        body = {"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 3}, **changes}
        answer = httpx.post(f"http://127.0.0.1:{self.rented.policy.port}/generate", json=body, timeout=30)
        return {"status": answer.status_code, **answer.json()}

    @property
    def version(self) -> str:
        return self.ask()["meta_info"]["weight_version"]


@pytest.fixture
def running(fireworks: Fireworks, tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path)
    yield made
    made.rented.__exit__()


def loaded(fireworks: Fireworks) -> str:
    [found] = fireworks.deployments.values()
    return found["replicas"][0]


# What is sent


def test_a_reply_has_fireworks_ids_log_probabilities_and_version(running: Running, fireworks: Fireworks) -> None:
    found = running.ask(top_logprobs_num=2)
    assert (found["output_ids"], found["meta_info"]["weight_version"]) == (REPLY, "0")
    assert [entry[:2] for entry in found["meta_info"]["output_token_logprobs"]] == [[0.0, each] for each in REPLY]
    assert found["meta_info"]["output_top_logprobs"][0] == [[0.0, 9, None], [-0.1, 10, None]]
    assert found["meta_info"]["cached_tokens"] == 1
    scored = running.ask(input_ids=[5, 6, 7], sampling_params={"max_new_tokens": 0}, logprob_start_len=0)
    assert [entry[1] for entry in scored["meta_info"]["input_token_logprobs"]] == [5, 6, 7]


def test_a_step_is_loaded_and_its_version_answers(running: Running, fireworks: Fireworks) -> None:
    metrics = step(running.trainer, 0)
    assert metrics["train/grad_norm"] == 0.5
    assert running.version == "0"
    assert running.trainer.update_weights() == "1"
    assert running.version == "1"
    assert fireworks.snapshots[loaded(fireworks)] == running_weights(fireworks) != 0.0
    assert metrics["tinker/train_tokens"] == 8 + 4


def running_weights(fireworks: Fireworks) -> float:
    [model] = fireworks.models.values()
    return float(model["weights"])


def test_a_large_batch_is_several_requests_whose_gradients_add_up(
    running: Running, fireworks: Fireworks, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slime.backends.fireworks_utils import training

    datums = [datum_of([1, 2, 3, n], torch.zeros(2), torch.full((2,), float(n))) for n in range(1, 6)]
    monkeypatch.setattr(training, "MOST_TOKENS", 6)
    assert [len(part) for part in parts(datums)] == [2, 2, 1]
    result = running.trainer._now.forward_backward(datums, "ppo", {"clip_low_threshold": 0.8}).result()
    [model] = fireworks.models.values()
    assert model["gradient"] == 2.0 * (1 + 2 + 3 + 4 + 5)
    assert len(result.loss_fn_outputs) == 5


def test_a_lost_answer_does_not_take_a_step_twice(running: Running, fireworks: Fireworks) -> None:
    running.service._completions._connection._patience = 60.0  # type: ignore[attr-defined]
    fireworks.refuses["retrieve_future"] = [410, 408, 503]
    step(running.trainer, 0)
    [model] = fireworks.models.values()
    assert model["moments"] == 1


# States


def test_a_refused_step_is_undone(running: Running, fireworks: Fireworks) -> None:
    step(running.trainer, 0)
    running.trainer.update_weights()
    before = running_weights(fireworks)
    running.trainer.take_snapshot()
    step(running.trainer, 1)
    assert running_weights(fireworks) != before
    running.trainer.undo_steps()
    assert (running_weights(fireworks), running.trainer.versions()) == (before, ("1", "1"))
    assert len(fireworks.models) == 1, "the one with the step is unloaded"


@pytest.mark.parametrize("kept", [True, False])
def test_a_resumed_run_goes_on_in_the_kept_trainer_or_a_new_one(
    kept: bool, fireworks: Fireworks, tmp_path: Path
) -> None:
    first = Running(tmp_path, fireworks_keep=kept)
    step(first.trainer, 0)
    first.trainer.update_weights()
    folder = Path(first.trainer.save(0))
    first.trainer.publish(0)
    before, trainer = running_weights(fireworks), first.service._rental.note.trainer
    first.rented.__exit__()
    path = json.loads((folder / "meta.json").read_text())["tinker_path"]
    assert path.startswith(f"fireworks://{trainer}/me/run/rollout-0000001-")
    fireworks.models.clear()
    second = Running(tmp_path, resume=True)
    assert second.start == 1
    assert (second.service._rental.note.trainer == trainer) is kept
    assert running_weights(fireworks) == before
    assert second.version == "1"
    second.rented.__exit__()


def test_a_trainer_that_dies_is_a_loss_and_the_next_trainer_revives_it(running: Running, fireworks: Fireworks) -> None:
    step(running.trainer, 0)
    running.trainer.save(0)
    running.trainer.publish(0)
    before = running_weights(fireworks)
    job = fireworks.trainers[running.service._rental.note.trainer_path]
    job["state"] = "FAILED"
    with pytest.raises(RankLostError, match="could not compute the gradient"):
        step(running.trainer, 1)
    fireworks.models.clear()
    again = running.rented.trainer(running.trainer._args.changed(resume=True))
    assert again.init() == 1
    assert (running_weights(fireworks), job["state"]) == (before, "RUNNING")


# Versions


def test_a_reply_that_began_is_finished_before_the_next_version_loads(running: Running, fireworks: Fireworks) -> None:
    step(running.trainer, 0)
    fireworks.free.clear()
    with ThreadPoolExecutor(3) as threads:
        old = threads.submit(running.ask)
        assert fireworks.began.acquire(timeout=10)
        update = threads.submit(running.trainer.update_weights)
        while not running.service._deployment._changes:
            threading.Event().wait(0.005)
        new = threads.submit(running.ask)
        assert "POST /hot_load/v1/models/hot_load" not in fireworks.calls[-2:]
        fireworks.free.set()
        assert update.result() == "1"
        assert old.result()["meta_info"]["weight_version"] == "0"
        assert new.result()["meta_info"]["weight_version"] == "1"
        assert old.result()["meta_info"]["output_token_logprobs"][0][0] == 0.0
        assert new.result()["meta_info"]["output_token_logprobs"][0][0] == -running_weights(fireworks)


def test_a_candidate_is_asked_while_nobody_else_is_answered_by_it(running: Running, fireworks: Fireworks) -> None:
    step(running.trainer, 0)
    running.trainer.update_weights()
    serving = running_weights(fireworks)
    running.trainer.take_snapshot()
    step(running.trainer, 1)
    probe = Probe([1, 2], [3, 4], 2)
    [mine] = running.trainer.ask(True, [probe])
    assert mine == ([-serving, -serving], REPLY[:2], True)
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(running.ask) for _ in range(8)]
        [candidate] = running.trainer.ask(False, [probe])
        assert candidate.log_probs == [-running_weights(fireworks)] * 2
        found = [each.result()["meta_info"] for each in asked]
    assert {each["weight_version"] for each in found} == {"1"}
    assert {each["output_token_logprobs"][0][0] for each in found} == {-serving}
    running.trainer.undo_steps()
    assert running.version == "1"


def test_a_reply_during_425_is_asked_again(running: Running, fireworks: Fireworks) -> None:
    fireworks.refuses["completions"] = [425, 404, 425]
    assert running.version == "0"


def test_a_replica_that_lost_its_weights_gets_them_again_and_the_reply_is_asked_again(
    running: Running, fireworks: Fireworks
) -> None:
    [found] = fireworks.deployments.values()
    mine = found["replicas"][0]
    fireworks.snapshots["of-somebody-else"] = 7.0
    found["replicas"] = ["of-somebody-else"]
    reply = running.ask()
    assert (reply["meta_info"]["weight_version"], reply["meta_info"]["output_token_logprobs"][0][0]) == ("0", 0.0)
    assert loaded(fireworks) == mine


def test_weights_that_do_not_load_are_a_loss_and_the_last_ones_answer(running: Running, fireworks: Fireworks) -> None:
    step(running.trainer, 0)
    running.trainer._current()
    fireworks.snapshots.popitem()
    with pytest.raises(RankLostError, match="could not load served-"):
        running.trainer.update_weights()
    reply = running.ask()["meta_info"]
    assert (reply["weight_version"], reply["output_token_logprobs"][0][0]) == ("0", 0.0)


def test_a_load_that_failed_once_is_done_again_by_a_later_request(running: Running, fireworks: Fireworks) -> None:
    [found] = fireworks.deployments.values()
    mine, fireworks.snapshots["of-somebody-else"] = found["replicas"][0], 7.0
    found["replicas"], fireworks.refuses["POST /hot_load"] = ["of-somebody-else"], [400]
    assert running.ask()["status"] == 400
    assert running.version == "0"
    assert loaded(fireworks) == mine


def test_a_replica_has_what_serves_and_not_what_it_also_holds() -> None:
    def has(current: str | None, *adapters: str) -> bool:
        held = [{"identity": each, "status": "loaded"} for each in adapters]
        replica = {"readiness": True, "current_snapshot_identity": current, "loaded_adapters": held}
        return deployment._has(replica, "mine")

    assert (has("mine", "other"), has(None, "mine")) == (True, True)
    assert not any((has("other", "mine"), has(None, "mine", "other"), has(None, "other"), has(None)))


# What is missing is refused


def choice(**changes: Any) -> dict[str, Any]:
    entries = [{"logprob": -0.5, "sampling_logprob": -0.25} for _ in REPLY]
    made = {
        "finish_reason": "stop",
        "logprobs": {"content": entries},
        "raw_output": {"completion_token_ids": list(REPLY)},
    }
    return {"choices": [{**made, **changes}]}


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (choice(raw_output=None), "returned no token ids"),
        (choice(logprobs=None), "returned 0 log probabilities for 3 tokens"),
        (choice(logprobs={"content": [{"logprob": -1.0}] * 2}), "returned 2 log probabilities for 3 tokens"),
        (choice(logprobs={"content": [{"logprob": None}] * 3}), "that is no finite number"),
        (choice(prompt_token_ids=[1, 2, 3]), "answered for other tokens"),
    ],
)
def test_an_answer_without_ids_or_numbers_is_refused(found: Mapping[str, Any], told: str) -> None:
    with pytest.raises(RefusedError, match=told):
        read(found, [1, 2], 0, score=False, exact=False)


def test_the_log_probability_is_that_of_the_sampling() -> None:
    [reply] = read(choice(), [1, 2], 0, score=False, exact=True).sequences
    assert reply.logprobs == [-0.25] * 3
    raw = choice(logprobs={"content": [{"logprob": -0.5}] * 3})
    assert read(raw, [1, 2], 0, score=False, exact=False).sequences[0].logprobs == [-0.5] * 3
    with pytest.raises(RefusedError, match="returned no sampling_logprob"):
        read(raw, [1, 2], 0, score=False, exact=True)
    with pytest.raises(RefusedError, match="no token ids with its likeliest tokens"):
        read(choice(), [1, 2], 3, score=False, exact=True)


def test_the_first_position_of_a_prompt_needs_no_likeliest_tokens() -> None:
    rest = {"logprob": -0.5, "top_logprobs": [{"token_id": 9, "logprob": -0.1}]}
    raw = {"completion_token_ids": [1, 2, 20]}
    found = read(
        choice(logprobs={"content": [{"logprob": None}, rest, rest]}, raw_output=raw),
        [1, 2],
        1,
        score=True,
        exact=False,
    )
    assert found.topk_prompt_logprobs == [None, [(9, -0.1)]]
    assert found.sequences[0].topk_logprobs == [[(9, -0.1)]]


def test_stops_at_token_ids_are_refused(running: Running) -> None:
    refused = running.ask(sampling_params={"max_new_tokens": 3, "stop_token_ids": [77]})
    assert (refused["status"], "stops at strings, not at token ids such as 77" in refused["error"]["message"]) == (
        400,
        True,
    )


def test_a_judge_that_does_not_answer_ends_the_run_before_it_costs_more(fireworks: Fireworks, tmp_path: Path) -> None:
    args = args_of(tmp_path, tinker_model="accounts/fireworks/models/absent")
    with pytest.raises(ConfigError, match=r"absent does not judge: .* with --tinker-judge-model"):
        Rented(args, FireworksService(args)).__enter__()
    assert not fireworks.deployments


def test_what_leaves_the_machine_is_said(
    fireworks: Fireworks, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Running(tmp_path)
    made.rented.__exit__()
    told = capsys.readouterr().out
    assert (
        f"sends    prompts, replies, judge's questions and training data, as token ids, to {fireworks.address}" in told
    )
    assert KEY not in told


def test_sessions_give_signs_of_life(fireworks: Fireworks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from slime.backends.fireworks_utils import training

    monkeypatch.setattr(training, "BEAT_SECONDS", 0.01)
    made = Running(tmp_path)
    while not any("session_heartbeat" in each for each in fireworks.looks):
        threading.Event().wait(0.005)
    made.rented.__exit__()
