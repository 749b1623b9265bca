"""`Sample.append_response_tokens`: aligned lists, refusals that change nothing, the engine's answer."""

from __future__ import annotations

import base64
import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime.args import Arguments
from slime.exceptions import SampleError
from slime.utils import types
from slime.utils.streams import carried
from slime.utils.types import Sample

FIXED = [name for name, stream in carried() if stream.per_token and not stream.grows]
Piece = tuple[list[int], bool]
ids = st.lists(st.integers(0, 99), max_size=5)
pieces = st.lists(st.tuples(ids, st.booleans()), max_size=6)


def append(sample: Sample, piece: Piece) -> None:
    tokens, trainable = piece
    log_probs = [-token / 7 for token in tokens] if trainable else None
    sample.append_response_tokens(tokens=tokens, log_probs=log_probs, trainable=trainable, text="x" * len(tokens))


@given(prompt=st.lists(st.integers(0, 99), min_size=1, max_size=4), pieces=pieces)
def test_every_list_stays_as_long_as_the_response(prompt: list[int], pieces: list[Piece]) -> None:
    sample = Sample(tokens=list(prompt))
    for piece in pieces:
        append(sample, piece)
    whole = [(token, trainable) for tokens, trainable in pieces for token in tokens]
    assert sample.tokens == prompt + [token for token, _ in whole]
    assert sample.response_length == len(sample.response) == len(whole)
    if pieces:
        assert sample.loss_mask == [int(trainable) for _, trainable in whole]
        assert sample.rollout_log_probs == [-token / 7 if trainable else 0.0 for token, trainable in whole]
    sample.validate()


@given(before=st.integers(1, 4), masked=st.booleans(), logged=st.booleans(), piece=st.tuples(ids, st.booleans()))
def test_a_response_that_is_there_already_is_completed_or_refused(
    before: int, masked: bool, logged: bool, piece: Piece
) -> None:
    sample = Sample(tokens=[9] * (before + 1), response_length=before)
    sample.loss_mask = [0] * before if masked else None
    sample.rollout_log_probs = [-1.0] * before if logged else None
    tokens, trainable = piece
    state = copy.deepcopy(vars(sample))
    if tokens and trainable and not logged:
        with pytest.raises(ValueError, match=f"the {before} response tokens so far have no rollout_log_probs"):
            append(sample, piece)
        assert vars(sample) == state
        return
    append(sample, piece)
    assert sample.loss_mask == [0 if masked else 1] * before + [int(trainable)] * len(tokens)
    if logged:
        assert sample.rollout_log_probs is not None
        assert len(sample.rollout_log_probs) == sample.response_length == before + len(tokens)
    else:
        assert sample.rollout_log_probs is None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"tokens": [5, 6], "log_probs": [-0.1]}, "2 trainable tokens came with 1 log_probs"),
        ({"tokens": [5], "log_probs": [-0.1, -0.2]}, "1 trainable tokens came with 2 log_probs"),
        ({"tokens": [], "log_probs": [-0.1]}, "0 trainable tokens came with 1 log_probs"),
        ({"log_probs": [-0.1]}, "0 trainable tokens came with 1 log_probs"),
        ({"tokens": [5]}, "1 trainable tokens came with no log_probs"),
        (
            {"tokens": [5], "log_probs": [-0.1], "trainable": False},
            "tokens that are not trainable must not have log_probs",
        ),
        ({"tokens": [], "log_probs": [], "trainable": False}, "tokens that are not trainable must not have log_probs"),
        ({"tokens": [5], "log_probs": [float("-inf")]}, "log_probs has a value that is not finite"),
        ({"meta_info": {"routed_experts": "AAAA"}}, "meta_info has routed_experts; pass args"),
    ],
)
def test_what_does_not_fit_is_a_value_error_that_changes_nothing(words: dict[str, Any], says: str) -> None:
    sample = Sample(tokens=[1, 2], response_length=1, loss_mask=[1], rollout_log_probs=[-0.5], response="a")
    state = copy.deepcopy(vars(sample))
    with pytest.raises(ValueError, match=says):
        sample.append_response_tokens(**{"text": "more"} | words)
    assert vars(sample) == state


@pytest.mark.parametrize("name", ["loss_mask", "rollout_log_probs"])
def test_lists_that_were_wrong_before_are_refused(name: str) -> None:
    sample = Sample(tokens=[1, 2], response_length=1)
    setattr(sample, name, [0, 0])
    with pytest.raises(ValueError, match=f"{name} has 2 entries for 1 response tokens"):
        sample.append_response_tokens(tokens=[3], trainable=False)


@pytest.mark.parametrize("name", FIXED)
def test_a_list_that_cannot_grow_is_named(name: str) -> None:
    sample = Sample(tokens=[1, 2], response_length=1, rollout_log_probs=[-0.5])
    setattr(sample, name, [0.0])
    with pytest.raises(ValueError, match=f"{name} is already set for 1 response tokens; append before setting it"):
        sample.append_response_tokens(tokens=[3], log_probs=[-0.5])
    sample.append_response_tokens(text="no token, no difference")


def test_a_prompt_token_comes_first() -> None:
    with pytest.raises(ValueError, match="all 1 tokens are response"):
        Sample().append_response_tokens(tokens=[5], log_probs=[-0.1])


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("length", Sample.Status.TRUNCATED),
        ("abort", Sample.Status.ABORTED),
        ("stop", Sample.Status.COMPLETED),
        ("other", Sample.Status.PENDING),
        (None, Sample.Status.PENDING),
    ],
)
def test_the_engines_answer(kind: str | None, status: Sample.Status) -> None:
    meta = {
        "finish_reason": kind and {"type": kind},
        "weight_version": 3,
        "cached_tokens": 5,
        "prompt_tokens": 10,
        "spec_accept_token_num": 2,
        "spec_draft_token_num": 4,
    }
    speculating = Arguments(sglang_speculative_algorithm="EAGLE")
    for terminal in (False, True):
        sample = Sample(tokens=[1])
        sample.append_response_tokens(
            speculating, tokens=[2], log_probs=[-0.5], meta_info=meta, text="b", update_terminal_info=terminal
        )
        assert sample.status == (status if terminal else Sample.Status.PENDING)
        assert (sample.weight_versions, sample.response) == (["3"], "b")
        assert sample.prefix_cache_info.prefix_cache_hit_rate == 0.5
        assert sample.spec_info.spec_accept_rate == 0.5
    plain = Sample(tokens=[1])
    plain.append_response_tokens(tokens=[2], log_probs=[-0.5], meta_info={})
    assert (plain.weight_versions, plain.spec_info, plain.status) == ([], Sample.SpecInfo(), Sample.Status.PENDING)


def test_routed_experts_are_decoded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(types, "expert_shape", lambda checkpoint: types.ExpertShape(2, 1, 4))
    args = Arguments(use_rollout_routing_replay=True, hf_checkpoint=str(tmp_path))

    def meta(rows: int) -> dict[str, Any]:
        sent = np.arange(rows * 2, dtype="<i4") % 4
        return {"routed_experts": base64.b64encode(sent.tobytes()).decode(), "weight_version": "1"}

    sample = Sample(tokens=[1, 2])
    sample.append_response_tokens(args, tokens=[3], log_probs=[-0.5], meta_info=meta(2))
    assert sample.rollout_routed_experts.tolist() == [[[0], [1]], [[2], [3]]]
    state = {**vars(sample), "weight_versions": ["1"]}
    with pytest.raises(SampleError, match="the engine sent 10 experts for 2 tokens in 2 layers"):
        sample.append_response_tokens(args, tokens=[4, 5], log_probs=[-0.5, -0.5], meta_info=meta(5))
    with pytest.raises(SampleError, match="routed_experts"):
        sample.append_response_tokens(args, text="b", meta_info={"routed_experts": "A"})
    assert vars(sample) == state
    sample.append_response_tokens(args, tokens=[4, 5], log_probs=[-0.5, -0.5], meta_info=meta(2))
    assert sample.rollout_routed_experts.shape == (4, 2, 1)
