"""Replies of an earlier version, token by token, and what is refused before a version is read."""

from __future__ import annotations

import asyncio
import math
import shutil
import threading
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
import torch
from transformers import AutoModelForCausalLM

from openclaw.earlier import replies, weights
from openclaw.earlier.__main__ import Answers
from openclaw.earlier.replies import ends_of, reply
from openclaw.earlier.weights import Weights
from openclaw.exceptions import VersionRefusedError
from openclaw.gateway.earlier import Wanted
from openclaw.runs.folder import open_run
from openclaw.runtime.where import scratch_of
from tests.helpers.checkpoints import checkpoint
from tests.helpers.tolerance import MODEL, assert_near
from tests.unit.tools.test_leave import make_run

pytestmark = pytest.mark.slow
PROMPT = list(range(3, 20))


@pytest.fixture(scope="module")
def model(tiny_random_model: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_random_model, dtype=torch.float32).eval()


def wanted(most: int = 12, top: int = 0, ends: frozenset[int] = frozenset(), **sampling: Any) -> Wanted:
    return Wanted("3", PROMPT, {"temperature": 0.0, "top_p": 1.0, "max_new_tokens": most, **sampling}, ends, top)


def ids_of(model: Any, **changes: Any) -> list[int]:
    return [token for chunk in reply(model, wanted(**changes)) for token in chunk.ids]


def scores_at(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([ids])).logits[0, -1].float(), dim=-1)


async def test_whoever_waits_for_a_reply_that_is_stopped_hears_of_it() -> None:
    may_go_on = threading.Event()

    class Loading:
        def of(self, version: str, person: str | None) -> Any:
            assert may_go_on.wait(20.0)
            raise VersionRefusedError("too late", 500)

    answers = Answers(cast(Weights, Loading()))
    answers.begin(1, None, wanted())
    waits = asyncio.create_task(answers.next(1))
    await asyncio.sleep(0)
    answers.stop(1)
    with pytest.raises(VersionRefusedError, match="was stopped"):
        await asyncio.wait_for(waits, 5.0)
    may_go_on.set()
    await asyncio.gather(*answers._tasks)


def test_log_probabilities_are_the_models_at_the_temperature(model: Any) -> None:
    torch.manual_seed(0)
    chunks = list(reply(model, wanted(6, top=3, temperature=2.0, top_k=5)))
    seen = list(PROMPT)
    for chunk in chunks:
        expected = torch.log_softmax(scores_at(model, seen) / 2, dim=-1)
        [token], [logprob] = chunk.ids, chunk.logprobs
        assert_near(torch.tensor(logprob), expected[token], roundings=MODEL)
        assert token in expected.topk(5).indices, "top_k cuts what is drawn, and no log-probability"
        assert [entry[1] for entry in chunk.top[0]] == expected.topk(3).indices.tolist()
        seen.append(token)
    assert [chunk.finish for chunk in chunks] == [None] * 5 + ["length"]
    assert {chunk.weight_version for chunk in chunks} == {"3"}


@pytest.mark.parametrize("sampling", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}])
def test_a_cut_to_one_token_is_greedy(model: Any, sampling: dict[str, Any]) -> None:
    assert ids_of(model, temperature=1.5, **sampling) == ids_of(model)


def test_tokens_are_drawn_as_often_as_the_model_says(model: Any) -> None:
    torch.manual_seed(1)
    draws = Counter(ids_of(model, most=1, temperature=1.0)[0] for _ in range(400))
    [(token, count)] = draws.most_common(1)
    share = math.exp(float(scores_at(model, PROMPT)[token]))
    assert abs(count - 400 * share) < 5 * math.sqrt(400 * share * (1 - share))


def test_where_a_reply_ends(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    greedy = ids_of(model)
    end = greedy[3]
    first = greedy.index(end)
    assert ids_of(model, ends=frozenset({end})) == greedy[: first + 1]
    assert list(reply(model, wanted(ends=frozenset({end}))))[-1].finish == "stop"
    assert ids_of(model, stop_token_ids=[end]) == greedy[: first + 1]
    assert ids_of(model, ends=frozenset({end}), ignore_eos=True) == greedy
    longer = ids_of(model, ends=frozenset({end}), min_new_tokens=first + 3)
    assert longer[:first] == greedy[:first]
    assert end not in longer[: first + 3]
    assert len(longer) >= first + 3
    assert ends_of(model) <= {model.config.eos_token_id}
    monkeypatch.setattr(replies, "REPLY_SECONDS", -1.0)
    [only] = reply(model, wanted())
    assert only.finish == "length"


def test_nobody_waits_for_a_reply_that_was_left(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "PIECE", 4)
    looks = iter([False] * 7 + [True])
    assert len(list(reply(model, wanted(), lambda: next(looks)))) == 3, "five pieces of the prompt, two tokens more"
    assert ids_of(model) == [token for chunk in reply(model, wanted()) for token in chunk.ids]


class _Disk(NamedTuple):
    free: int


@pytest.fixture
def kept(tmp_path: Path, tiny_random_model: Path) -> Weights:
    base = Path(shutil.copytree(tiny_random_model, tmp_path / "base"))
    run = make_run(tmp_path / "run", base)
    model = AutoModelForCausalLM.from_pretrained(base)
    state = {"model": {f"hf.{name}": tensor for name, tensor in model.state_dict().items()}}
    checkpoint(run / "checkpoints", 3, state, weight_version="2")
    return Weights(open_run(run))


def refusal(kept: Weights, version: str) -> tuple[int, str]:
    with pytest.raises(VersionRefusedError) as caught:
        kept.of(version, None)
    return caught.value.status, str(caught.value)


def test_a_version_is_loaded_once_and_alone(kept: Weights, tmp_path: Path) -> None:
    first = kept.of("2", None)
    assert kept.of("2", None) is first
    assert kept.of("0", None) is not first
    assert not scratch_of(tmp_path / "run").exists()


def test_what_does_not_fit_is_not_read(kept: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_read", lambda folder: pytest.fail("it was read"))
    monkeypatch.setattr(weights.shutil, "disk_usage", lambda place: _Disk(2**20))
    status, words = refusal(kept, "2")
    assert (status, "0.5 GiB on the disk of the run" in words) == (507, True), words
    monkeypatch.setattr(weights, "usable_memory_mib", lambda: 100)
    status, words = refusal(kept, "0")
    assert (status, "of memory, where 0.1 GiB are free" in words) == (507, True), words


def test_a_version_that_went_meanwhile_or_is_damaged_is_told(kept: Weights, tmp_path: Path) -> None:
    assert refusal(kept, "7") == (404, "version 7 is not kept any more")
    (tmp_path / "base" / "model.safetensors").unlink()
    for version in ("0", "2"):
        assert refusal(kept, version) == (500, f"version {version} cannot be read; the server's log says why")
