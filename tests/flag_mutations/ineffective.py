"""Makes the product ignore one flag while tests still see what was set.

A read of the flag's attribute counts as the product's when the file of the calling frame lies in the repository and not in
``tests/``. Such a read gets

* what the product itself has derived (``args.x = ...`` in its own code), if it has;
* else the declared default;
* else, for a flag without a default that a run cannot do without (`STAND_INS`), another value than the one given, so that
  not every reader stops at a None.

The checks of the command line (functions ``check_*`` of ``slime.arguments``, and what they call) see what was set, so that a
line such as "--x needs --y" does not pass for an effect of ``--y``. Flags that do nothing but take part in checks are
measured by a second kind of mutation (``where="checks too"``).

``vars(args)`` in the product gets a copy with that value. So an engine flag (``--sglang-*``) is missing in the engine's
command, and a flag of Megatron has its default in Megatron's configuration. Everyone else, pickle and ``copy`` included, has
the real object, so a copy in another process behaves like the original.

A flag that only plugins read is dropped as the parser stores it (``where="parser"``): there is no other reader to lie to.

Only the standard library is imported here, because child processes load this file at their start.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

VARIABLE = "FLAG_MUTATION"
ROOT = str(Path(__file__).resolve().parents[2]) + os.sep
NOT_PRODUCT = tuple(ROOT + folder for folder in ("tests" + os.sep, ".venv" + os.sep))
ARGUMENTS = ROOT + os.path.join("slime", "slime", "arguments") + os.sep
# Reads files of flags into the arguments, so what it writes was set by the user; it reads the names of these files only.
FILES = ARGUMENTS + "yaml_files.py"
NAMES_OF_FILES = ("config", "custom_config_path", "custom_arguments_path")
# They change the real attributes through `vars`.
REAL_DICT = (ROOT + os.path.join("slime", "slime", "args", "base.py"), ROOT + os.path.join("slime", "eval_only.py"))
# The key under which the product's own value travels with the object.
OWN = "\0of the product"

STAND_INS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "hf_checkpoint": lambda values: "/flag/ignored",
    "run_dir": lambda values: "runs/flag-ignored",
    "rollout_batch_size": lambda values: 1,
    "ref_load": lambda values: values["hf_checkpoint"],
    "prm_model_path": lambda values: values["hf_checkpoint"],
    "rollout_num_gpus": lambda values: values["rollout_num_gpus_per_engine"],
    "train_dtype": lambda values: "float32",
    "train_backend": lambda values: "fsdp",
    "num_nodes": lambda values: 1,
    "over_sampling_batch_size": lambda values: values["rollout_batch_size"],
    "global_batch_size": lambda values: (values["rollout_batch_size"] or 1) * values["n_samples_per_prompt"],
    "num_steps_per_rollout": lambda values: 1,
    "eps_clip_high": lambda values: values["eps_clip"],
    "eval_function_path": lambda values: values["rollout_function_path"],
    "eval_input_key": lambda values: values["input_key"],
    "eval_tool_key": lambda values: values["tool_key"],
    "eval_temperature": lambda values: values["rollout_temperature"],
    "eval_top_p": lambda values: values["rollout_top_p"],
    "eval_top_k": lambda values: values["rollout_top_k"],
    "offload_train": lambda values: False,
    "offload_rollout": lambda values: False,
    "update_weight_mode": lambda values: "full",
    "transformer_impl": lambda values: "local",
    "critic_lr": lambda values: values["lr"],
    "critic_save": lambda values: values["save"] and os.path.join(values["save"], "critic"),
    "critic_num_nodes": lambda values: values["actor_num_nodes"],
    "critic_num_gpus_per_node": lambda values: values["actor_num_gpus_per_node"],
}
"""What the derivations would say, for arguments that a test made by hand."""


@dataclasses.dataclass(frozen=True)
class Mutation:
    """A flag that has no effect: its attribute, and where it is lost (``effects``, ``checks too`` or ``parser``)."""

    attribute: str
    where: str = "effects"

    def text(self) -> str:
        """Return what `follow_environment` reads in a child process."""
        return json.dumps(dataclasses.asdict(self))


_current: Mutation | None = None
_kinds: dict[str, bool] = {}
_get, _set = object.__getattribute__, object.__setattr__


def is_product(file: str) -> bool:
    """Return whether ``file`` is code of the repository and not of its tests."""
    if file not in _kinds:
        _kinds[file] = file.startswith(ROOT) and not file.startswith(NOT_PRODUCT)
    return _kinds[file]


def default_of(attribute: str) -> Any:
    """Return the declared default, which is also what the class of the arguments has."""
    arguments = sys.modules["slime.args.arguments"].Arguments
    field = arguments.__dataclass_fields__.get(attribute)
    if field is None:
        return None  # a flag of the engines that the core does not read
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _serves(frame: FrameType | None, *kinds: str) -> bool:
    """Return whether a function ``check_*`` or ``derive_*`` of the command line is among the callers."""
    while frame is not None:
        if frame.f_code.co_name.lstrip("_").startswith(kinds) and frame.f_code.co_filename.startswith(ARGUMENTS):
            return True
        frame = frame.f_back
    return False


def _seen_by_product(values: dict[str, Any], attribute: str, frame: FrameType) -> Any:
    if OWN in values:
        return values[OWN]
    default = default_of(attribute)
    # Derivations, and checks before them, want to know what was left open.
    if attribute in STAND_INS and default is None and "seed" in values and not _serves(frame, "check_", "derive_"):
        return STAND_INS[attribute](values)
    return default


def _applies(holder: Any, frame: FrameType, mutation: Mutation) -> bool:
    file = frame.f_code.co_filename
    if not is_product(file) or (file == FILES and mutation.attribute not in NAMES_OF_FILES):
        return False
    if mutation.where == "effects" and file.startswith(ARGUMENTS) and _serves(frame, "check_"):
        return False
    # A plain Namespace is a parser's result on its way to the arguments, or another program's.
    return type(holder) is not Namespace or file == FILES


def _read(self: Any, name: str) -> Any:
    mutation = _current
    if mutation is None or mutation.where == "parser" or name not in (mutation.attribute, "__dict__"):
        return _get(self, name)
    value, frame = _get(self, name), sys._getframe(1)
    if not _applies(self, frame, mutation):
        return value
    if name == mutation.attribute:
        return _seen_by_product(_get(self, "__dict__"), name, frame)
    if frame.f_code.co_filename in REAL_DICT or mutation.attribute not in value:
        return value
    shown = {key: each for key, each in value.items() if key != OWN}
    return shown | {mutation.attribute: _seen_by_product(value, mutation.attribute, frame)}


def _write(self: Any, name: str, value: Any) -> None:
    mutation = _current
    if mutation is None or mutation.where == "parser" or name != mutation.attribute:
        return _set(self, name, value)
    frame, values = sys._getframe(1), _get(self, "__dict__")
    if not _applies(self, frame, mutation) or frame.f_code.co_filename == FILES:
        return _set(self, name, value)
    values[OWN] = value
    # A derived value does not hide from the tests what was set, unless the product takes the flag back.
    default = default_of(name)
    if value == default or values.get(name) == default:
        _set(self, name, value)
    return None


def _wrap_of(arguments: Any) -> None:
    plain = arguments.of.__func__

    def of(cls: Any, values: Any) -> Any:
        args = plain(cls, values)
        if _current is not None and _current.where == "parser" and _current.attribute in _get(args, "__dict__"):
            _set(args, _current.attribute, default_of(_current.attribute))
        return args

    arguments.of = classmethod(of)


def install() -> None:
    """Watch every read of arguments from here on; `ignore` says of which flag."""
    from slime.args.arguments import Arguments
    from slime.args.base import FlatArguments

    Namespace.__getattribute__ = FlatArguments.__getattribute__ = _read
    Namespace.__setattr__ = _write
    _wrap_of(Arguments)


def ignore(mutation: Mutation | None) -> None:
    """Let this process, and the children that it starts, ignore a flag; None ends that."""
    global _current
    _current = mutation
    if mutation is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = mutation.text()


def follow_environment() -> None:
    """Ignore the flag that the parent process ignores; a child that cannot import the arguments needs nothing."""
    try:
        install()
    except ImportError:
        return
    ignore(Mutation(**json.loads(os.environ[VARIABLE])))
