"""`--client plain`: who talks to the demo, and what a resumed demo remembers of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from student import STUDENT

from groundwork.checkpoint_names import LATEST
from lab import demo
from lab.tiny_demo import resume
from lab.tiny_models.tastes import TASTES


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RESUME", raising=False)


def test_the_student_talks_unless_a_plain_client_is_asked_for() -> None:
    options = demo.parse([])
    assert (options.client, options.taste) == ("student", None)
    assert demo.user_of(options) is STUDENT


def test_a_plain_client_has_the_taste_of_the_seed() -> None:
    names = [demo.parse(["--client", "plain", "--seed", str(seed)]).taste for seed in range(6)]
    assert names == [*(taste.name for taste in TASTES), TASTES[0].name]
    options = demo.parse(["--client", "plain", "--seed", "1", "--taste", "tada"])
    assert demo.user_of(options).name == "tada"


def test_a_taste_without_a_plain_client_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        demo.parse(["--taste", "tada"])
    assert ended.value.code == 2
    assert "--taste tada is for the plain client; add --client plain" in " ".join(capsys.readouterr().err.split())


def test_a_resumed_demo_keeps_its_user(tmp_path: Path) -> None:
    first = demo.parse(["--client", "plain", "--seed", "3", "--run-dir", str(tmp_path)])
    first.state.save(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / LATEST).write_text("3")
    options = demo.parse(["--resume", "--run-dir", str(tmp_path)])
    assert (options.client, options.taste) == ("plain", TASTES[3].name)
    assert {"client", "taste"} <= set(resume.OPTIONS)
