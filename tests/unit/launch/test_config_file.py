"""``--config FILE`` of the launcher: it wins over defaults, never over what the user typed; a bad file is one line."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from groundwork.exceptions import ConfigError
from groundwork.yaml_file import MAX_BYTES, read_yaml_mapping
from openclaw.launch.__main__ import main
from openclaw.launch.flags import VARIABLE_OF_FLAG
from openclaw.launch.plan import Plan, Recipe
from openclaw.launch.profiles import PROFILES
from openclaw.launch.resolve import make_plan
from slime.args import Arguments
from slime.arguments import parse_args
from slime.arguments.parser import Parser, parser_for
from slime.arguments.yaml_files import config_file_of, find_action
from tests.helpers.checkpoints import config_only
from tests.helpers.launch_plans import Scripts, task_plan

CLEAN = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
PLACES = [*((profile, "combine") for profile in PROFILES), ("gpu8", "opd_topk"), ("gpu8", "hybrid")]
TYPED_EVERYWHERE = {"KL_LOSS_COEF": "0.3", "USE_WANDB": "1", "USE_LORA": "1", "MAX_WEIGHT_STALENESS": "7"}
"""Variables without which a launch leaves some flags out."""


def plan_of(profile: str, method: str, *extra: str, **environment: str) -> Plan:
    return make_plan(Recipe(method, "qwen3-4B", PROFILES[profile]), extra, CLEAN | environment)


def parsed(plan: Plan) -> tuple[Parser, Arguments]:
    """The parser and what it reads in the plan's flags, before anything is derived."""
    words = [word for section in plan.sections.values() for word in section]
    parser = parser_for(words)
    return parser, parser.parse_args(words)


def other_value(action: argparse.Action, value: Any) -> Any:
    """A value for a flag that differs from the one it has; None if there is no other one."""
    if action.nargs == 0:
        return False
    if action.choices:
        return next((each for each in action.choices if each != value), None)
    if isinstance(value, list | tuple):
        return ["train/loss>9"]
    if isinstance(value, int | float):
        return value + 1
    return f"{value}-other"


def other_settings(plan: Plan) -> dict[str, tuple[Any, Any]]:
    """A file's settings that change every flag of a plan, each with the argument that it then gives."""
    parser, args = parsed(plan)
    found = {}
    for word in (word for section in plan.sections.values() for word in section if word.startswith("--")):
        action = find_action(parser, word)
        assert action is not None, word
        value = getattr(args, action.dest)
        if (other := other_value(action, value)) is not None:
            found[word.removeprefix("--")] = other, not value if action.nargs == 0 else other
    assert len(found) > 40
    return found


def written(folder: Path, settings: dict[str, tuple[Any, Any]]) -> str:
    file = folder / "flags.yaml"
    file.write_text(yaml.safe_dump({name: value for name, (value, _) in settings.items()}))
    return str(file)


@pytest.mark.parametrize(("profile", "method"), PLACES)
def test_a_file_wins_over_every_default_of_the_launcher(profile: str, method: str, tmp_path: Path) -> None:
    wanted = other_settings(plan_of(profile, method))
    parser, args = parsed(plan_of(profile, method, "--config", written(tmp_path, wanted)))
    for name, (_, value) in wanted.items():
        action = find_action(parser, name)
        assert action is not None
        assert getattr(args, action.dest) == value, name


@pytest.mark.parametrize(("profile", "method"), PLACES)
def test_every_variable_that_was_typed_wins_over_the_file(profile: str, method: str, tmp_path: Path) -> None:
    start = plan_of(profile, method, **TYPED_EVERYWHERE)
    values = {entry.variable.name: entry.value for entry in start.variables.values()}
    values |= {name: value for name, value, _ in start.runtime.describe()}
    values |= {variable.name: value for variable, value in start.own.values()}
    names = {*VARIABLE_OF_FLAG.values(), *(variable.name for variable, _ in start.own.values())}
    # Typed as they are by default: a variable counts as typed by being set, not by its value.
    typed = {name: "1" if values[name] is True else "0" if values[name] is False else str(values[name]) for name in names
             if values.get(name) not in (None, "") and name != "NODE_RANK"}  # fmt: skip
    before = plan_of(profile, method, **TYPED_EVERYWHERE | typed)
    wanted = other_settings(before)
    del wanted["train-backend"]  # another one recomputes activations by another flag
    after = plan_of(profile, method, "--config", written(tmp_path, wanted), **TYPED_EVERYWHERE | typed)
    parser, args = parsed(after)
    _, as_typed = parsed(before)
    own = {"--opd-kl-coef"} if method in ("combine", "hybrid") else set()
    for name, (_, value) in wanted.items():
        action = find_action(parser, name)
        assert action is not None
        variable = VARIABLE_OF_FLAG.get(name)
        by_variable = variable in typed or f"--{name}" in own
        expected = getattr(as_typed, action.dest) if by_variable else value
        assert getattr(args, action.dest) == expected, name


def test_flags_win_over_the_file_wherever_they_stand(tmp_path: Path) -> None:
    file = tmp_path / "flags.yaml"
    file.write_text("lr: 1e-6\nseed: 77\nclip-grad: 0.33\n")
    for words in (["--lr", "2e-6", "--config", str(file)], ["--config", str(file), "--lr", "2e-6"]):
        plan = plan_of("gpu8", "combine", *words, SEED="5")
        assert (plan.args.lr, plan.args.seed, plan.args.clip_grad) == (2e-6, 5, 0.33)
        assert "--config" not in plan.command


def test_the_other_defaults_follow_the_file(tmp_path: Path) -> None:
    file = tmp_path / "flags.yaml"
    file.write_text("train-backend: megatron\nuse-tis: true\n")
    words = plan_of("gpu8", "combine", "--config", str(file)).command
    assert "--recompute-granularity" in words
    assert "--use-rollout-logprobs" not in words


DEEP = "a: " + "[" * 3000 + "]" * 3000
BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
BAD: dict[str, tuple[bytes, str]] = {
    "broken": (b"seed: 3\nlr: [1e-6\n", "line 3 is not YAML"),
    "tab": (b"lr: 1e-6\n\tseed: 3\n", "line 2 is not YAML"),
    "two documents": (b"lr: 1e-6\n---\nseed: 3\n", "line 2: a second document begins"),
    "python tag": (b"lr: !!python/object/apply:os.getcwd []\n", "line 1: the tag tag:yaml.org,2002:python/"),
    "tag of a list": (b"seed: 3\nlr: !!int foo\n", "line 2: the tag"),
    "no UTF-8": (b"seed: 3\nlr: \xff\n", "line 2: the byte 0xff is not UTF-8"),
    "UTF-16": ("lr: 1e-6\n".encode("utf-16"), "line 1: the byte"),
    "a NUL": (b"lr: 1e-6\n\0\n", "is not YAML"),
    "a key twice": (b"lr: 1e-6\nseed: 3\nlr: 2e-6\n", "line 3: lr stands in line 1 too"),
    "a nested key twice": (b"training:\n  batch_size: 4\n  batch_size: 8\n", "line 3: batch_size stands in line 2 too"),
    "a flag twice": (b"clip-grad: 1\nclip_grad: 2\n", "clip-grad and clip_grad set the same"),
    "empty": (b"", "is empty"),
    "only comments": (b"# lr: 1e-6\n", "is empty"),
    "a list": (b"- lr\n", "line 1: holds no `name: value` line"),
    "a word": (b"\nlr\n", "line 2: holds no `name: value` line"),
    "a number as a key": (b"lr: 1\n1: 2\n", "line 2: '1' is not a name"),
    "a list as a key": (b"? [a]\n: 2\n", "line 1: a list or a mapping is not a name"),
    "no date": (b"seed: 2020-13-45\n", "put it in quotes"),
    "deep": (DEEP.encode(), "nests"),
    "deep in moderation": (("a: " + "[" * 30 + "]" * 30).encode(), "line 1: nests more than"),
    "a bomb": (BOMB.encode(), "expand to more than"),
    "an anchor in itself": (b"a: &a [*a]\n", "expand"),
    "an unknown anchor": (b"a: *b\n", "line 1 is not YAML"),
    "too large": (b"#" * (MAX_BYTES + 1), f"more than {MAX_BYTES} bytes"),
    "an unknown flag": (b"lerning-rate: 1\n", "there is no flag 'lerning-rate'"),
    "a list for one value": (b"lr: [1, 2]\n", "takes one value"),
}


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], path: str) -> str:
    monkeypatch.setattr(os, "environ", dict(CLEAN))
    with pytest.raises(SystemExit) as ended:
        main(["--method", "combine", "--model", "qwen3-4B", "--dry-run", "--config", path])
    captured = capsys.readouterr()
    assert ended.value.code == 2
    assert captured.out == ""
    assert captured.err.startswith(f"launch: --config {path}") or "launch: --lr takes one value" in captured.err
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize("kind", sorted(BAD))
def test_a_bad_file_is_one_line(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content, says = BAD[kind]
    file = tmp_path / "flags.yaml"
    file.write_bytes(content)
    assert says in refused(monkeypatch, capsys, str(file))


def test_what_is_no_file_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "flags.yaml").write_text("lr: 1")
    assert "did you mean" in refused(monkeypatch, capsys, str(tmp_path / "flag.yaml"))
    assert "is a folder" in refused(monkeypatch, capsys, str(tmp_path))
    assert "not a plain file" in refused(monkeypatch, capsys, "/dev/null")
    loop = tmp_path / "loop.yaml"
    loop.symlink_to(loop)
    assert "loop" in refused(monkeypatch, capsys, str(loop))


def test_a_byte_order_mark_and_a_small_anchor_are_read(tmp_path: Path) -> None:
    file = tmp_path / "flags.yaml"
    file.write_bytes(b"\xef\xbb\xbfseed: &seed 7\nnum-rollout: *seed\n")
    assert read_yaml_mapping("--config", str(file)) == {"seed": 7, "num-rollout": 7}


def test_two_files_of_flags_are_refused(tmp_path: Path) -> None:
    """The first was ignored in silence."""
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text("seed: 7")
    words = ["--config", str(tmp_path / "a.yaml"), "--config", str(tmp_path / "b.yaml")]
    with pytest.raises(ConfigError, match=r"a.yaml and --config .*b.yaml both hold flags; put them into one file"):
        plan_of("gpu8", "combine", *words)
    with pytest.raises(ConfigError, match="put them into one file"):
        config_file_of(words)


@pytest.mark.parametrize("flag", ["--config", "--custom-config-path", "--eval-config"])
def test_every_file_of_settings_is_read_alike(flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "flags.yaml"
    file.write_bytes(b"lr: \xff")
    with pytest.raises(SystemExit) as ended:
        parse_args(["--hf-checkpoint", str(config_only(tmp_path / "model")), "--device", "cpu", flag, str(file)])
    said = capsys.readouterr().err
    assert (ended.value.code, said.count("\n")) == (2, 1)
    assert f"{flag} {file} line 1: the byte 0xff is not UTF-8" in said


AGENTS = ("toolcall-rl/retool_qwen3_4b_rl.sh", "swe-rl/run_swe_rl.sh", "terminal-rl/terminal_qwen3_8b_rl.sh",
          "gui-rl/gui_qwen3vl_8b_rl.sh")  # fmt: skip


@pytest.mark.parametrize("script", AGENTS)
def test_a_file_wins_over_an_agents_script_and_a_variable_over_the_file(
    script: str, repository: Path, tmp_path: Path
) -> None:
    file = tmp_path / "flags.yaml"
    file.write_text("lr: 5e-5\nclip-grad: 0.33\n")
    scripts = Scripts(repository / script.split("/")[0])
    words = [*scripts.words(script.split("/", 1)[1])[4:], "--config", str(file)]
    args = task_plan(words).args
    assert (args.lr, args.clip_grad) == (5e-5, 0.33)
    args = task_plan([*words, "--clip-grad", "0.5"], LEARNING_RATE="2e-5").args
    assert (args.lr, args.clip_grad) == (2e-5, 0.5)
    with pytest.raises(ConfigError, match=r"LEARNIG_RATE is set, but nothing reads it; did you mean LEARNING_RATE\?"):
        task_plan(words, LEARNIG_RATE="1e-6")
