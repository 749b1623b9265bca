"""Cache key and gate of the tiny model."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from word_problems import replies

from lab.tiny_models import build, cache, episodes
from lab.tiny_models.gate import failures
from lab.tiny_models.tastes import TASTES
from openclaw.judge.prompts import judge_messages

GOOD = {
    "judge_accuracy_heldout": 0.95,
    "base_right_number": 0.9,
    "everyday_right_number": 0.9,
    "base_rule": 0.2,
    "judge_accuracy_tastes": 0.95,
    "hint_copied_tastes": 0.6,
    **{f"base_{taste.name}": 0.15 for taste in TASTES},
}


def changed_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "Settings", partial(cache.Settings, steps=10))


def changed_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(replies.IN_WORDS, "+", "and")


def changed_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*args: Any) -> list[dict[str, str]]:
        return [{**message, "content": message["content"] + "!"} for message in judge_messages(*args)]

    monkeypatch.setattr(episodes, "judge_messages", asked)


def changed_template(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "TEMPLATE", Path(__file__))


new_key = cache.cache_key.__wrapped__


def test_the_key_follows_the_seed() -> None:
    assert new_key(0) == new_key(0) != new_key(1)


@pytest.mark.parametrize("change", [changed_settings, changed_corpus, changed_judge, changed_template])
def test_the_key_follows_what_the_model_is_trained_on(
    change: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = new_key(0)
    change(monkeypatch)
    assert new_key(0) != before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"judge_accuracy_heldout": 0.89}, "judge accuracy"),
        ({"base_right_number": 0.84}, "right numbers"),
        ({"everyday_right_number": 0.8}, "everyday problems"),
        ({"base_rule": 0.31}, "base rule"),
        ({"judge_accuracy_tastes": 0.89}, "tastes outside the corpus"),
        ({"hint_copied_tastes": 0.49}, "repeat the user's words exactly"),
        ({"base_captain": 0.04}, "the taste captain"),
        ({"base_tada": 0.26}, "the taste tada"),
        ({"base_rule": 0.09}, "base rule"),
    ],
)
def test_the_gate_names_what_is_wrong(change: dict[str, float], words: str) -> None:
    assert failures(GOOD) == []
    (line,) = failures({**GOOD, **change})
    assert words in line


def test_a_built_model_is_not_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []

    def fake(path: Path, seed: int, console: object) -> None:
        built.append(seed)
        path.mkdir(parents=True)
        (path / "metrics.json").write_text("{}")

    monkeypatch.setattr(build, "_build", fake)
    output = tmp_path / "model"
    assert build.ensure_built(3, output) == output
    build.ensure_built(3, output)
    assert built == [3]
    build.ensure_built(4, output, force=True)
    assert built == [3, 4]
    assert cache.is_built(output)


def test_a_model_that_fails_its_gate_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(path: Path, seed: int, console: object) -> None:
        path.mkdir(parents=True)
        raise build.BuildError("judge accuracy 0.5")

    monkeypatch.setattr(build, "_build", fail)
    assert build.main(["--output", str(tmp_path / "model")]) == 1
    assert "judge accuracy 0.5" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_the_repository_has_the_model_of_its_sources() -> None:
    command = "PYTHONPATH=openclaw-test python -m lab.tiny_models.build --ship"
    assert cache.model_path() == cache.SHIPPED, f"the corpus or the judge's prompts changed: {command}, then commit"
    metrics = json.loads((cache.SHIPPED / "metrics.json").read_text())
    assert failures(metrics) == []


def test_a_model_of_other_sources_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "SHIPPED", tmp_path)
    assert cache.model_path() == cache.CACHE / cache.cache_key(0)
    (tmp_path / "metrics.json").write_text('{"key": "another"}')
    assert cache.model_path() == cache.CACHE / cache.cache_key(0)
    (tmp_path / "metrics.json").write_text(json.dumps({"key": cache.cache_key(0)}))
    assert cache.model_path() == tmp_path
    assert cache.model_path(1) == cache.CACHE / cache.cache_key(1)
