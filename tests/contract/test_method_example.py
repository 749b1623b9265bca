"""The example of CONTRIBUTING.md: two files that are a complete method; what is wrong in such a folder is said at once."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from groundwork.exceptions import ConfigError
from lab import demo
from lab.tiny_demo.options import method_of
from openclaw.config.runtime import RuntimeConfig
from openclaw.launch.__main__ import main as launch
from openclaw.launch.method_check import folder_problems, main
from openclaw.launch.plan import Recipe
from openclaw.launch.profiles import TINY_CPU
from openclaw.launch.resolve import make_plan
from openclaw.ledger.records import Verdict
from openclaw.method.check import canned_turn
from openclaw.method.loading import load_method
from slime.utils.misc import load_function

BLOCK = re.compile(r"^`(openclaw-mymethod)/(\w+\.py)`:\n\n```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
METHOD = "openclaw_mymethod_method.py"
ROLLOUT = "openclaw_mymethod_rollout.py"


def forget() -> None:
    """Forget the folder's modules, as a new process does."""
    for name in [name for name in sys.modules if name.startswith("openclaw_mymethod")]:
        del sys.modules[name]
    load_function.cache_clear()


@pytest.fixture
def folder(tmp_path: Path, repository: Path) -> Iterator[Path]:
    """The folder as CONTRIBUTING.md shows it."""
    files = BLOCK.findall((repository / "CONTRIBUTING.md").read_text())
    assert [name for _, name, _ in files] == [METHOD, ROLLOUT]
    for folder, name, text in files:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_text(text)
    forget()
    yield tmp_path / "openclaw-mymethod"
    forget()


def edit(folder: Path, *changes: tuple[str, str], file: str = METHOD) -> None:
    text = (folder / file).read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / file).write_text(text)


def test_the_example_is_accepted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(folder)]) == 0
    text = capsys.readouterr().out
    assert text.startswith(
        f"accepted {folder}: 10 clauses; to watch it learn on this CPU: bash openclaw-combine/run_tiny_cpu.sh"
    )


def as_rule(folder: Path, repository: Path) -> None:
    """Change the example to the plain rule that CONTRIBUTING.md shows."""
    page = (repository / "CONTRIBUTING.md").read_text()
    declared, body = re.findall(r"^```text\n(    .*?)^```", page, re.MULTILINE | re.DOTALL)
    (imported,) = re.findall(r"`(from openclaw.messages.text import\s[^`]+)`", page)
    text = (folder / METHOD).read_text()
    before, _, after = text.partition("    def judges(self):")
    _, _, end = after.partition("    def session_samples")
    before = before.replace('    name = "mymethod"\n', f'    name = "mymethod"\n{declared}')
    before = before.replace("\n\n\n", f"\n{' '.join(imported.split())}\n\n\n", 1)
    (folder / METHOD).write_text(f"{before}{body}\n    def session_samples{end}")


def test_a_plain_rule_needs_no_judge(
    folder: Path, repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_rule(folder, repository)
    assert main(["check", str(folder)]) == 0
    assert "--live" in capsys.readouterr().out
    plan = make_plan(Recipe(str(folder), None, TINY_CPU), [], {})
    assert not plan.args.prm_enable
    monkeypatch.syspath_prepend(str(folder))
    turn = canned_turn(0.6, 0)
    long = replace(turn, response_message={"role": "assistant", "content": "word " * 40})
    complaint = [{"role": "user", "content": "That is TOO LONG for me."}]
    rule = load_method("openclaw_mymethod_method.MyMethod", RuntimeConfig())
    rewards = [
        [sample.reward for sample in rule.samples(replace(each, next_state=said), Verdict()).samples]
        for each, said in ((turn, complaint), (long, complaint), (long, None))
    ]
    assert rewards == [[1.0], [-1.0], []]
    edit(folder, ("    asks_judge = False", "    asks_judge = True"))
    forget()
    assert main(["check", str(folder)]) == 1
    assert "add asks_judge = False to openclaw_mymethod_method.Config" in capsys.readouterr().out


def test_the_example_inherits_binary_rl(folder: Path) -> None:
    own, rl = (make_plan(Recipe(name, None, TINY_CPU), [], {}).args for name in (str(folder), "rl"))
    for flag in (
        "advantage_estimator",
        "rewards_normalization",
        "eps_clip_high",
        "lr",
        "kl_loss_coef",
        "rollout_batch_size",
    ):
        assert getattr(own, flag) == getattr(rl, flag), flag
    assert own.lr == 3e-4


def test_the_demo_takes_a_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "environ", {"PATH": os.environ["PATH"]})
    monkeypatch.chdir(folder.parent)
    monkeypatch.setattr(
        sys, "argv", ["demo.py", "--method", "combine", "--method", folder.name, "--dry-run", "--verbose"]
    )
    assert demo.main() == 0
    output = capsys.readouterr().out
    assert "generate_rollout_mymethod" in output
    assert "runs/tiny-cpu-mymethod-" in output
    assert output.splitlines()[-1] == "dry run: the plan is valid, nothing was started"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nope", "--method nope: use combine, hybrid, oel, opd"),
        ("opd_topk", "a variant, which the demo does not run; use opd"),
    ],
)
def test_the_demo_refuses_another_name(name: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        demo.parse(["--method", name])
    assert caught.value.code == 2
    assert says in capsys.readouterr().err


def test_the_demo_refuses_a_broken_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(folder, ("def judges", "def judge"))
    with pytest.raises(SystemExit):
        demo.parse(["--method", str(folder)])
    assert "MyMethod lacks judges: add def judges(self) -> JudgePlan" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="the method cannot work"):
        method_of(str(folder))


def test_everything_is_said_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(
        folder,
        ("    rollout_function", '    defaults = {"NO_SUCH": 1, "PRM_M": 0}\n    rollout_function'),
        ("generate_rollout_mymethod", "generate_rollout_mine"),
        ("return JudgePlan(prm_votes=self.votes)", "return self.votes"),
        ("if not verdict.score", "if not verdict.skore"),
        ("def session_samples", "def session_sample"),
    )
    assert main(["check", str(folder)]) == 1
    text = capsys.readouterr().out
    for words in (
        "default for the unknown variable NO_SUCH",
        "PRM_M=0 is too small",
        "has no 'generate_rollout_mine'; write in openclaw_mymethod_rollout.py: generate_rollout_mymethod = LiveRollout(",
        "clause method-1: a method has a name",
        "lacks session_samples: add def session_samples(self, judged)",
        "clause method-2: a method returns a JudgePlan from judges(); judges() returned 1",
        "'Verdict' object has no attribute 'skore' (openclaw_mymethod_method.py, line 25)",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        (METHOD, "class MyMethod", "class Mine", "has no 'MyMethod'"),
        (METHOD, "def samples", "def sample", "MyMethod lacks samples: add def samples(self, turn, verdict)"),
        (METHOD, "verdict.score:", "verdict.skore:", "no attribute 'skore' (openclaw_mymethod_method.py, line 24)"),
        (
            METHOD,
            "config.prm_m",
            "config.votes",
            "raised AttributeError: 'RuntimeConfig' object has no attribute 'votes'",
        ),
        (
            ROLLOUT,
            "LiveRollout(",
            "LiveRolout(",
            "name 'LiveRolout' is not defined (openclaw_mymethod_rollout.py, line 3)",
        ),
        (ROLLOUT, "generate_rollout_mymethod =", "generate =", "has no 'generate_rollout_mymethod'"),
    ],
)
def test_the_dry_run_refuses_a_wrong_method(
    folder: Path,
    file: str,
    old: str,
    new: str,
    says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "environ", {"PATH": os.environ["PATH"]})
    if old == "LiveRollout(":
        edit(folder, ("= LiveRollout(", "= LiveRolout("), file=file)
    else:
        edit(folder, (old, new), file=file)
    with pytest.raises(SystemExit) as caught:
        launch(["--method", str(folder), "--profile", "tiny_cpu", "--dry-run"])
    assert caught.value.code == 2
    text = capsys.readouterr().err
    assert says in text
    assert f"python -m openclaw.method check {folder}" in text


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "class Config(MethodConfig)",
            "class Settings(MethodConfig)",
            "add class Config(MethodConfig); CONTRIBUTING.md has",
        ),
        ('    name = "mymethod"\n', "", "Config has no name; add a line"),
        ("    rollout_function", "    rollout", "names no rollout function: add rollout_function = "),
        (
            "class MyMethod",
            'raise KeyError("left")\n\n\nclass MyMethod',
            "cannot be imported: KeyError: 'left' (openclaw_mymethod_method.py",
        ),
        (
            '    name = "mymethod"',
            "    name = \"mymethod\"\n\n    def launch_flags(self):\n        return '--use-opd'",
            "return a tuple of words",
        ),
        (
            '    name = "mymethod"',
            '    name = "mymethod"\n\n    def launch_flags(self):\n        return 1 / 0',
            "launch_flags() raised ZeroDivisionError",
        ),
    ],
)
def test_a_declaration_says_what_to_write(folder: Path, old: str, new: str, says: str) -> None:
    edit(folder, (old, new))
    assert [problem for problem in folder_problems(folder, {}) if says in problem]


def test_a_folder_without_a_method_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / METHOD).rename(folder / "my_method.py")
    assert folder_problems(folder, {}) == [f"{folder} has no {METHOD}; rename my_method.py"]
    (folder / "my_method.py").unlink()
    assert "CONTRIBUTING.md has a complete example" in folder_problems(folder, {})[0]
    (folder / METHOD).write_text("")
    (folder / ROLLOUT).write_text("def generate_rollout_mymethod(*_):\n    return []\n")
    edited = 'from openclaw.config.method_config import MethodConfig\n\n\nclass Config(MethodConfig):\n    name = "mymethod"\n'
    (folder / METHOD).write_text(
        edited + '    rollout_function = "openclaw_mymethod_rollout.generate_rollout_mymethod"\n'
    )
    [problem] = folder_problems(folder, {})
    assert "names no method; write: generate_rollout_mymethod = LiveRollout(" in problem
    assert main(["check", str(folder / "nowhere")]) == 2
    assert "or the path of a method folder" in capsys.readouterr().err


def test_the_clauses_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clauses"]) == 0
    assert capsys.readouterr().out.startswith("method-1: a method has a name")
