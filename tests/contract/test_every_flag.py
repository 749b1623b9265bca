"""Every flag of the contract is in the help or refused with a line, and every accepted one is read; `flag_effects.py` says what it does."""

from __future__ import annotations

import argparse
import ast
import functools
from pathlib import Path

import pytest

from slime.arguments import parse_args
from slime.arguments.parser import GROUPS, parser_for
from slime.arguments.refused import FIXED, REFUSED
from slime.arguments.rollout import ENVIRONMENTS
from tests.contract.flag_table import FLAGS
from tests.helpers.syntax import parsed

OPTIONS = [option for group in GROUPS for option in group.options]
# Read by what is not Python of this repository: the plugins of method folders (2.7 of the contract).
READ_BY_PLUGINS = {option.attribute for option in ENVIRONMENTS.options}
# Files beside the declarations that make something of the values besides checking them.
READERS = ("model_shape.py", "evaluation.py", "gpu.py", "placement.py", "process_environment.py")
# The value changes nothing by itself: checked against others, the default said aloud, or a choice that does not exist here.
CHECKED_ONLY = {"override_lr_scheduler", "optimizer", "rollout_external", "critic_num_nodes"}


# A plugin of the agent folder that declares flags of the contract.
PLUGIN = ["--custom-generate-function-path", "generate_with_gui.generate"]


@functools.cache
def known_flags() -> dict[str, argparse.Action]:
    """Return the flags of the core, and of the plugin where it is named."""
    return dict(parser_for(PLUGIN)._option_string_actions)


@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_of_the_contract_is_in_the_help_or_refused_with_a_line(flag: str) -> None:
    action = known_flags()[f"--{flag}"]
    if flag in REFUSED:
        reason = REFUSED[flag]
        assert "\n" not in reason
        assert len(reason) > 20, "a reason says what to use instead"
    else:
        assert action.help not in (None, argparse.SUPPRESS)


def test_a_refused_flag_is_refused_with_any_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["1"], ["a", "b"]):
        given = [word for flag in REFUSED for word in (f"--{flag}", *words)]
        with pytest.raises(SystemExit):
            parse_args(["--run-dir", str(tmp_path), *given])
        text = capsys.readouterr().err
        assert not [flag for flag, reason in REFUSED.items() if f"--{flag} {reason}" not in text]


def test_every_flag_of_the_installed_router_is_refused() -> None:
    router = pytest.importorskip("sglang_router.router_args")
    parser = argparse.ArgumentParser(add_help=False)
    router.RouterArgs.add_cli_args(parser, use_router_prefix=True, exclude_host_port=True)
    flags = {name[2:] for name in parser._option_string_actions if name.startswith("--router-")}
    assert flags
    assert not flags - set(REFUSED)


def last_name(node: ast.expr) -> str:
    """Return a name, or the last part of a dotted one; empty for anything else."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def attributes_read(repository: Path) -> set[str]:
    """Attributes that code outside the declarations takes from ``args``."""
    found: set[str] = set()
    files = [
        *repository.glob("slime/**/*.py"),
        *repository.glob("openclaw/**/*.py"),
        *repository.glob("openclaw-*/*.py"),
    ]
    declarations = repository / "slime" / "slime" / "arguments"
    for path in files:
        if path.is_relative_to(declarations) and path.name not in READERS:
            continue
        tree = parsed(path)
        texts = {
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        if path.name == "model_shape.py":
            found |= texts
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                if last_name(node.value) in ("args", "_args", "arguments"):
                    found.add(node.attr)
            elif isinstance(node, ast.Call) and last_name(node.func) == "getattr":
                name = node.args[1]
                if isinstance(name, ast.Constant):
                    found.add(name.value)
                elif isinstance(name, ast.JoinedStr) and isinstance(name.values[0], ast.Constant):
                    found |= {f"{name.values[0].value}{text}" for text in texts}  # getattr(args, f"eval_{name}")
    return found


def attributes_derived(repository: Path) -> set[str]:
    """Attributes that the derivations turn into others: what they do is done by those."""
    found: set[str] = set()
    for path in (repository / "slime" / "slime" / "arguments").glob("*.py"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef) and "derive" in node.name:
                found |= {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    return found


def test_every_accepted_flag_is_read_by_code(repository: Path) -> None:
    read = attributes_read(repository) | attributes_derived(repository) | READ_BY_PLUGINS | CHECKED_ONLY
    unread = [option.flag for option in OPTIONS if option.attribute not in read]
    assert not unread, f"accepted and read nowhere: {unread}; make them real or refuse them"


def test_no_flag_is_both_accepted_and_refused() -> None:
    accepted = [name.lstrip("-") for option in OPTIONS for name in (option.flag, *option.aliases)]
    accepted += [fixed.flag.lstrip("-") for fixed in FIXED]
    assert not set(accepted) & set(REFUSED)
    assert len(accepted) == len(set(accepted))
