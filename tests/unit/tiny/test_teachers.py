"""Tiny teachers: what a liked one is taught, how another tokenizer cuts its texts, and what the control is."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from simulated_users.reading import find_user
from transformers import AutoModelForCausalLM, AutoTokenizer
from word_problems.problems import heldout

from chat_codec.renderer import Renderer
from lab.testkit.ledger_records import make_turn
from lab.tiny_models import teachers
from lab.tiny_models.cache import SHIPPED, Settings
from lab.tiny_models.teachers import liked_batches, liked_conversation, main, moved
from lab.tiny_models.train import new_model
from openclaw.judge.reading import OtherModel

SAID = "Sure! You start with 12 and add 5, so 12 + 5 = 17. That makes 17."


@pytest.fixture(scope="module")
def policy() -> Any:
    return AutoTokenizer.from_pretrained(SHIPPED)


@pytest.fixture(scope="module")
def other() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(teachers, "OTHER_TEXTS", 100)
        return teachers.other_tokenizer()


def test_a_liked_teacher_is_taught_replies_that_the_student_likes() -> None:
    student, rng = find_user("student"), random.Random(0)
    conversations = [liked_conversation(rng) for _ in range(300)]
    assert all(student.likes(messages[-1]["content"]) for messages in conversations)
    assert {len(messages) for messages in conversations} == {2, 4}
    asked = {messages[0]["content"] for messages in conversations}
    assert not asked & {problem.question for problem in heldout(256)}


@pytest.mark.parametrize("name", ["policy", "other"])
def test_only_the_last_reply_has_a_weight(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teachers, "POOL", 4)
    tokenizer = request.getfixturevalue(name)
    ids, weights = next(liked_batches(tokenizer, 0, 400))
    for row, weight in zip(ids, weights, strict=True):
        text = tokenizer.decode(row[weight > 0])
        assert text.endswith(tokenizer.eos_token)
        assert find_user("student").likes(text)
        assert "user" not in text


def test_the_other_tokenizer_cuts_the_same_text_elsewhere(policy: Any, other: Any) -> None:
    assert other.decode(other.encode(SAID)) == SAID
    read = OtherModel(policy, other, Renderer(policy).render)
    assert read.mode == "another tokenizer: aligned by spans"
    ids = [*policy.encode(SAID), policy.eos_token_id]
    reading = read.read(make_turn(response_ids=ids), [{"role": "user", "content": "How many?"}])
    assert reading.untaught == {}
    assert any(len(own) > 1 for own, _ in reading.spans), "else nothing is shared"
    assert any(len(theirs) > 1 for _, theirs in reading.spans)


def test_a_model_that_moves_keeps_its_layers_and_the_meaning_of_tokens(policy: Any, other: Any) -> None:
    model = AutoModelForCausalLM.from_pretrained(SHIPPED, dtype=torch.float32)
    made = moved(model, policy, other, 0)
    old, new = model.get_input_embeddings().weight, made.get_input_embeddings().weight
    assert torch.equal(made.model.layers[3].mlp.up_proj.weight, model.model.layers[3].mlp.up_proj.weight)
    assert torch.equal(new[other.convert_tokens_to_ids("7")], old[policy.convert_tokens_to_ids("7")])
    assert torch.equal(new[other.eos_token_id], old[policy.eos_token_id])
    assert made.config.eos_token_id == other.eos_token_id
    word = next(token for token in other.get_vocab() if len(policy.encode(token)) == 3 and token.isascii())
    assert torch.allclose(new[other.convert_tokens_to_ids(word)], old[policy.encode(word)].mean(0))
    assert made.lm_head.weight is new, "tied, as in the tiny model"


def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Any, liked: float) -> tuple[Any, Path]:
    """Let teachers be tiny, and be measured as ``liked``; return what builds one, and its folder."""
    small = partial(Settings, hidden=16, layers=1, intermediate=16, batch_tokens=300)
    base = tmp_path / "base"
    new_model(policy, small(), 1).save_pretrained(base)
    policy.save_pretrained(base)
    monkeypatch.setattr(teachers, "Settings", small)
    monkeypatch.setattr(teachers, "POOL", 8)
    monkeypatch.setattr(teachers, "ensure_built", lambda console: base)
    rates = {"liked": liked, "right_number": 1.0}
    monkeypatch.setattr(teachers, "measure_first_replies", lambda sampler, count: rates)
    return main, tmp_path / "teachers" / "made"


def test_a_teacher_has_the_policys_shape_and_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    command, folder = build(tmp_path, monkeypatch, policy, 0.97)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base").state_dict()
    for kind, more in (("liked", ["--steps", "1"]), ("random", [])):
        out = folder.with_name(kind)
        assert command([kind, "--out", str(out), *more]) == 0
        assert capsys.readouterr().out == f"{out}\n"
        found = AutoModelForCausalLM.from_pretrained(out).state_dict()
        assert {name: value.shape for name, value in found.items()} == {name: v.shape for name, v in base.items()}
        distances = [float((found[name] - value).abs().max()) for name, value in base.items()]
        assert max(distances) < 0.05 if kind == "liked" else max(distances) > 0.05
        note = json.loads((out / "metrics.json").read_text())
        assert (note["teacher"], note["tokenizer"], note["liked"]) == (kind, "same", 0.97)
        assert note["steps"] == (1 if kind == "liked" else 0)


def test_a_liked_teacher_that_nobody_likes_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    command, folder = build(tmp_path, monkeypatch, policy, 0.6)
    assert command(["liked", "--out", str(folder), "--steps", "1"]) == 1
    assert "after 1 steps 0.60 of the replies are liked" in capsys.readouterr().err
    assert not folder.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["liked", "--out", "."], "exists; name another folder"),
        (["random", "--out", "new", "--steps", "3"], "--steps is for a liked teacher"),
        (["like", "--out", "new"], "did you mean liked?"),
    ],
)
def test_a_command_line_that_asks_for_nothing(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
