"""Write the class `slime.args.Arguments` from the declared flags: ``python -m slime.arguments.generate``.

Guarantee: one attribute per flag, with the type of its parser and the default of its declaration. An attribute in
`slime.arguments.validate.DERIVED` has its type during a run: never None.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import slime.args.arguments
from slime.arguments.option import comma_list, json_object
from slime.arguments.parser import build_parser
from slime.arguments.refused import REFUSED_PREFIX
from slime.arguments.rollout import media_columns
from slime.arguments.sglang_flags import OWNED, READ_BY_CORE, attribute_of, recorded_flags
from slime.arguments.validate import DERIVED

FILE = Path(slime.args.arguments.__file__)
_TYPES = {
    None: "str",
    str: "str",
    int: "int",
    float: "float",
    comma_list: "list[str]",
    json_object: "dict[str, Any]",
    media_columns: "dict[str, str]",
}
_SWITCHES = (argparse._StoreTrueAction, argparse._StoreFalseAction, argparse.BooleanOptionalAction)
_BEFORE = '''"""The arguments of a run, flat under the contract's names.

Written by ``python -m slime.arguments.generate`` from the declared flags. Do not edit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from slime.args.base import DERIVED, FlatArguments

if TYPE_CHECKING:
    from slime.arguments.evaluation import EvalDataset


@dataclass(kw_only=True, eq=False, repr=False)
class Arguments(FlatArguments):
    """Every flag of the training core, and what the derivations add."""

'''
_AFTER = """    # Set by the derivations; no flags of their own.
    eval_datasets: list[EvalDataset] = field(default_factory=list)
    train_backend_because: tuple[str, ...] = ()
    transformer_impl_because: str = ""
    start_together: bool = False
    use_critic: bool = False
    unused_flags: tuple[str, ...] = ()
    training_options_given: tuple[str, ...] = ()
"""


def type_of(action: argparse.Action) -> str:
    """Return the type annotation of the attribute that ``action`` sets."""
    if isinstance(action, _SWITCHES):
        kind = "bool"
    elif action.choices is not None:
        kind = f"Literal[{', '.join(map(quoted, action.choices))}]"
    else:
        kind = _TYPES[action.type]  # pyright: ignore[reportArgumentType]
        if action.nargs in ("+", "*") or isinstance(action, argparse._AppendAction):
            kind = f"list[{kind}]"
    return kind if action.default is not None or action.dest in DERIVED else f"{kind} | None"


def default_of(action: argparse.Action) -> str:
    """Return the source text of the default value of ``action``."""
    if isinstance(action.default, list | tuple | dict):
        empty = dict if isinstance(action.default, dict) else list
        return f"field(default_factory={empty.__name__ if not action.default else f'lambda: {action.default!r}'})"
    if action.default is None:
        return "DERIVED" if action.dest in DERIVED else "None"
    return quoted(action.default)


def quoted(value: object) -> str:
    """Return ``value`` as source text in the formatter's style."""
    return json.dumps(value) if isinstance(value, str) else repr(value)


def text() -> str:
    """Return the module's source text."""
    of_engines = {attribute_of(flag) for flag in recorded_flags().keys() - READ_BY_CORE - OWNED}
    declared = {
        action.dest: f"    {action.dest}: {type_of(action)} = {default_of(action)}\n"
        for action in build_parser()._actions
        if action.default is not argparse.SUPPRESS
        and not action.dest.startswith(REFUSED_PREFIX)
        and action.dest not in of_engines
    }
    return _BEFORE + "".join(declared.values()) + _AFTER


def main() -> None:
    """Write the module."""
    FILE.write_text(text())
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", FILE], check=True)
    print(f"wrote {FILE.name}", file=sys.stderr)


if __name__ == "__main__":
    main()
