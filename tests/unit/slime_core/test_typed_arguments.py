"""`Arguments` are what the flags declare, and behave as the Namespace that plugins know."""

from __future__ import annotations

import ast
import copy
import pickle
from argparse import Namespace as PluginNamespace

import pytest

from slime.args import Arguments, required
from slime.arguments import build_parser, parse_args
from slime.arguments.generate import FILE, text
from slime.arguments.validate import DERIVED


def test_the_class_is_what_the_flags_declare() -> None:
    same = ast.dump(ast.parse(text())) == ast.dump(ast.parse(FILE.read_text()))
    assert same, "slime/args/arguments.py is old; run: python -m slime.arguments.generate"


def test_its_defaults_are_those_of_the_parser() -> None:
    parsed = vars(build_parser().parse_args([]))
    for name, value in vars(Arguments()).items():
        assert parsed[name] == value or list(parsed[name]) == value, name


def test_it_is_the_namespace_that_plugins_know() -> None:
    args = Arguments(lr=1e-4)
    args.my_bonus = 0.5  # type: ignore[attr-defined]
    assert isinstance(args, PluginNamespace)
    assert PluginNamespace(**vars(args)) == args == pickle.loads(pickle.dumps(args)) == copy.deepcopy(args)
    assert ("my_bonus" in args, "my_malus" in args) == (True, False)


def test_a_copy_with_changes_leaves_the_original() -> None:
    args = Arguments(lr=1e-4)
    args.my_bonus = 0.5  # type: ignore[attr-defined]
    changed = args.changed(lr=2e-4, my_bonus=1.0)
    assert (args.lr, changed.lr, changed.my_bonus) == (1e-4, 2e-4, 1.0)  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="no attribute 'learning_rate'"):
        args.changed(learning_rate=1.0)


def test_a_misspelt_attribute_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'hf_chekpoint'"):
        assert Arguments().hf_chekpoint  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="hf_chekpoint"):
        Arguments(hf_chekpoint="model")  # type: ignore[call-arg]


def test_a_flag_that_is_needed_is_named() -> None:
    assert required("--save", "folder") == "folder"
    with pytest.raises(ValueError, match="--save is required here"):
        required("--save", None)


def test_what_is_derived_is_there_after_the_command_line(base: list[str]) -> None:
    args = parse_args(base)
    critic = {
        "critic_lr",
        "critic_num_nodes",
        "critic_num_gpus_per_node",
        "transformer_impl",
    }  # None without their roles
    missing = [name for name in DERIVED - critic if getattr(args, name) is None]
    assert not missing
