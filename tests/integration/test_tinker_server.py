"""The real package ``tinker`` against our server on the CPU: it learns, samples what it learned, and outlives a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.tinker_server import NAME, REPOSITORY, TinkerServer

tinker = pytest.importorskip("tinker", reason="install the tinker extra")
types = tinker.types
pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]
KEY = "tml-of-a-test"
STEPS = 12


@pytest.fixture
def service(tinker_server: TinkerServer) -> Iterator[Any]:
    client = tinker.ServiceClient(base_url=tinker_server.url, api_key=KEY)
    yield client
    client.close("success").result()


def datum(ids: list[int]) -> Any:
    """Return a datum that learns to continue a text."""
    length = len(ids) - 1
    return types.Datum(
        model_input=types.ModelInput.from_ints(ids[:-1]),
        loss_fn_inputs={"target_tokens": ids[1:], "weights": [1.0] * length},
    )


def sentence(seed: int, length: int = 12) -> list[int]:
    return np.random.default_rng(seed).integers(3, 600, length).tolist()


def scores(client: Any, ids: list[int]) -> np.ndarray:
    """Return the log probabilities that the trainer gives a text's tokens, from the second on."""
    found = client.forward([datum(ids)], "cross_entropy").result()
    return np.asarray(found.loss_fn_outputs[0]["logprobs"].data)


def step(client: Any, ids: list[int], rate: float = 5e-3) -> float:
    passed = client.forward_backward([datum(ids)], "cross_entropy")
    stepped = client.optim_step(types.AdamParams(learning_rate=rate))
    stepped.result()
    return passed.result().metrics["loss:sum"]


def test_it_learns_and_samples_what_it_learned(service: Any) -> None:
    client = service.create_lora_training_client(base_model=NAME, rank=4, seed=3).result()
    assert client.get_info().lora_rank == 4
    ids = sentence(1)
    losses = [step(client, ids, 1e-2) for _ in range(20)]
    assert losses[-1] < 0.7 * losses[0]
    sampler = client.save_weights_and_get_sampling_client().result()
    ours = scores(client, ids)
    theirs = sampler.compute_logprobs(types.ModelInput.from_ints(ids)).result()
    np.testing.assert_allclose(theirs[1:], ours, atol=1e-3)
    prompt = types.ModelInput.from_ints(ids[:4])
    params = types.SamplingParams(max_tokens=6, temperature=1.0)
    found = sampler.sample(prompt=prompt, num_samples=4, sampling_params=params).result()
    for sequence in found.sequences:
        whole = [*ids[:4], *sequence.tokens]
        np.testing.assert_allclose(sequence.logprobs, scores(client, whole)[3:], atol=1e-3)
    base = service.create_sampling_client(base_model=NAME).result()
    before = base.compute_logprobs(types.ModelInput.from_ints(ids)).result()
    assert np.mean(before[1:]) < np.mean(theirs[1:]) - 1


def test_a_custom_loss_is_the_same_as_its_own_name(service: Any) -> None:
    data = [datum(sentence(seed)) for seed in (4, 5)]

    def loss(given: Any, log_probs: Any) -> Any:
        total = -sum(each.sum() for each in log_probs)
        return total, {"mine": float(total.detach())}

    found = []
    for run in (
        lambda client: client.forward_backward_custom(data, loss),
        lambda client: client.forward_backward(data, "cross_entropy"),
    ):
        client = service.create_lora_training_client(base_model=NAME, rank=8, seed=9).result()
        run(client).result()
        client.optim_step(types.AdamParams(learning_rate=1e-2)).result()
        found.append(scores(client, sentence(4)))
    np.testing.assert_allclose(*found, atol=1e-5)


@pytest.mark.parametrize("loss", ["importance_sampling", "ppo", "cispo", "dro"])
def test_advantages_raise_what_was_good(service: Any, loss: str) -> None:
    client = service.create_lora_training_client(base_model=NAME, rank=4, seed=2).result()
    ids = sentence(7)
    before = scores(client, ids)
    advantages = [1.0] * 6 + [-1.0] * 5
    given = types.Datum(
        model_input=types.ModelInput.from_ints(ids[:-1]),
        loss_fn_inputs={
            "target_tokens": ids[1:],
            "logprobs": types.TensorData.from_torch(torch.tensor(before, dtype=torch.float32)),
            "advantages": types.TensorData.from_torch(torch.tensor(advantages)),
        },
    )
    client.forward_backward([given], loss).result()
    client.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    change = scores(client, ids) - before
    assert change[:6].mean() > 0 > change[6:].mean()


def test_saved_weights_go_on_as_if_nothing_had_happened(service: Any) -> None:
    client = service.create_lora_training_client(base_model=NAME, rank=4, seed=5).result()
    step(client, sentence(1))
    path = client.save_state("half").result().path
    again = service.create_training_client_from_state_with_optimizer(path).result()
    bare = service.create_training_client_from_state(path).result()
    for each in (client, again, bare):
        step(each, sentence(2))
    ours, theirs, other = (scores(each, sentence(3)) for each in (client, again, bare))
    assert ours.tobytes() == theirs.tobytes()
    assert ours.tobytes() != other.tobytes(), "without the optimizer's state the step is another one"
    kept = client.save_weights_for_sampler("named").result().path
    sampler = service.create_sampling_client(model_path=kept).result()
    found = sampler.compute_logprobs(types.ModelInput.from_ints(sentence(3))).result()
    np.testing.assert_allclose(found[1:], ours, atol=1e-3)


def test_two_programs_do_not_influence_each_other(tinker_server: TinkerServer) -> None:
    def train(seed: int, found: dict[Any, bytes], name: str) -> None:
        with tinker.ServiceClient(base_url=tinker_server.url, api_key=KEY) as own:
            client = own.create_lora_training_client(base_model=NAME, rank=4, seed=seed).result()
            for number in range(8):
                step(client, sentence(100 * seed + number))
            found[name] = scores(client, sentence(seed)).tobytes()

    alone: dict[Any, bytes] = {}
    for seed in (1, 2):
        train(seed, alone, str(seed))
    together: dict[Any, bytes] = {}
    threads = [threading.Thread(target=train, args=(seed, together, str(seed))) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


def test_a_killed_server_goes_on_without_a_lost_or_repeated_step(tinker_server: TinkerServer, service: Any) -> None:
    def train(client: Any, at: Any = None) -> bytes:
        for number in range(STEPS):
            step(client, sentence(number))
            if at is not None and number == STEPS // 2:
                at.set()
        return scores(client, sentence(50)).tobytes()

    expected = train(service.create_lora_training_client(base_model=NAME, rank=4, seed=8).result())
    client = service.create_lora_training_client(base_model=NAME, rank=4, seed=8).result()
    sampler = client.save_weights_and_get_sampling_client().result()
    half, found = threading.Event(), []
    thread = threading.Thread(target=lambda: found.append(train(client, half)))
    thread.start()
    assert half.wait(120)
    tinker_server.kill()
    tinker_server.start()
    thread.join(300)
    assert found == [expected], "a step was lost, or taken twice"
    prompt = types.ModelInput.from_ints(sentence(1))
    params = types.SamplingParams(max_tokens=3)
    assert len(sampler.sample(prompt=prompt, num_samples=1, sampling_params=params).result().sequences[0].tokens) == 3


def test_a_killed_rank_and_a_killed_engine_are_replaced(tinker_server: TinkerServer, service: Any) -> None:
    client = service.create_lora_training_client(base_model=NAME, rank=4, seed=8).result()
    twin = service.create_lora_training_client(base_model=NAME, rank=4, seed=8).result()
    for number in range(4):
        step(client, sentence(number))
        step(twin, sentence(number))
    titles = {process.pid: " ".join(process.cmdline()) for process in tinker_server.children()}
    rank = min(pid for pid, title in titles.items() if "ClientRank" in title)
    engine = min(pid for pid, title in titles.items() if "slime.backends.sglang_utils.server" in title)
    os.kill(rank, signal.SIGKILL)
    os.kill(engine, signal.SIGKILL)
    step(client, sentence(9))
    step(twin, sentence(9))
    assert scores(client, sentence(5)).tobytes() == scores(twin, sentence(5)).tobytes()
    sampler = client.save_weights_and_get_sampling_client().result()
    found = sampler.compute_logprobs(types.ModelInput.from_ints(sentence(5))).result()
    np.testing.assert_allclose(found[1:], scores(client, sentence(5)), atol=1e-3)


def test_a_second_server_is_refused_the_folder(tinker_server: TinkerServer) -> None:
    second = subprocess.run(
        tinker_server.command, env=tinker_server.environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert second.returncode == 2
    assert "is in use by another run" in second.stderr
    assert len(second.stderr.strip().splitlines()) == 1


def test_the_program_of_the_page_works(tinker_server: TinkerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (REPOSITORY / "instructions" / "tinker_server.md").read_text()
    program = (
        page.partition("```py\n")[2].partition("```")[0].replace("Qwen/Qwen3-4B", NAME).replace("rank=16", "rank=8")
    )
    monkeypatch.setenv("TINKER_BASE_URL", tinker_server.url)
    monkeypatch.setenv("TINKER_API_KEY", KEY)

    def usage() -> dict[str, int]:
        with urllib.request.urlopen(f"{tinker_server.url}/v1/usage") as answer:
            return json.load(answer)["total"]

    before, found = usage(), dict[str, Any]()
    exec(program, found)
    assert found["passed"].result().metrics["loss:sum"] > 0
    scores = found["sampler"].compute_logprobs(types.ModelInput.from_ints(found["ids"])).result()
    found["service"].close("success").result()
    assert len(scores) == len(found["ids"])
    spent = {name: count - before[name] for name, count in usage().items()}
    assert (spent["trained_tokens"], spent["sampled_tokens"]) == (len(found["ids"]) - 1, 1)
    assert spent["prefill_tokens"] + spent["cached_tokens"] == len(found["ids"])


def test_what_is_not_offered_is_said_and_the_program_goes_on(service: Any) -> None:
    client = service.create_lora_training_client(base_model=NAME, rank=4).result()
    with pytest.raises(tinker.RequestFailedError, match="'gspo' is not offered here"):
        client.forward_backward([datum(sentence(1))], "gspo").result()
    with pytest.raises(tinker.RequestFailedError, match="a pass before it failed"):
        client.optim_step(types.AdamParams()).result()
    assert step(client, sentence(1)) > 0
    with pytest.raises(tinker.RequestFailedError, match="up to rank 8"):
        service.create_lora_training_client(base_model=NAME, rank=64).result()
    with pytest.raises(tinker.RequestFailedError, match="this server has 'tiny'"):
        service.create_lora_training_client(base_model="other", rank=4).result()
