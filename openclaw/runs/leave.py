"""``openclaw-rl export RUN --adapter --to OUT``: leave with what a run learned, or with ``--person NAME`` with one's own adapter.

    peft     a folder of two files: the adapter, as PEFT, vLLM and SGLang read it
    merged   a folder of a whole model, as Transformers reads it
    gguf     one file of a whole model, as llama.cpp and what is built on it read it

Guarantees: reads the run, also while it is up, and writes only ``OUT``, whole or not at all. What is written is the version that
serves a person, or the newest checkpoint of everybody's weights; the line says which.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from groundwork.exceptions import ConfigError
from openclaw.runs.folder import RunFolder, open_run
from openclaw.runtime.adapters import copy_adapter, export_adapter
from openclaw.runtime.where import add_person, checkpoints_of
from slime.checkpoints.versions import SavedVersion, newest_of_version, saved_versions
from slime.conversion.command_line import DTYPES
from slime.exceptions import SlimeError
from slime.weight_sync.people import CONFIG

FORMS = PEFT, MERGED, GGUF = ("peft", "merged", "gguf")
ADAPTER = "adapter"
"""A checkpoint's folder of its adapter, in a run that trains one."""
STATE = "state"
"""A checkpoint's folder of all weights, of the FSDP back end."""


class MegatronError(ConfigError):
    """A checkpoint is of Megatron, whose own tool has to convert it."""


@dataclass(frozen=True)
class Learned:
    """What a run learned.

    Attributes:
        place: the folder of its adapter, or the checkpoint of all weights.
        what: it is, in words.
        is_adapter: whether it is an adapter.
        more: what else a person wants to know of it.
    """

    place: Path
    what: str
    is_adapter: bool
    more: str = ""


def add_leaving(parser: argparse.ArgumentParser) -> None:
    """Add the options of leaving to the command ``export``."""
    parser.add_argument(
        "--adapter", action="store_true", help="with --to, in place of FILE: write what the run learned"
    )
    add_person(parser, "the same of this person, in a run with an adapter for each person")
    parser.add_argument("--to", type=Path, metavar="OUT", help="the new folder, or the new file with --as gguf")
    parser.add_argument(
        "--as",
        dest="form",
        choices=FORMS,
        default=PEFT,
        help="adapter as PEFT reads it, whole model as Transformers does, or one file for llama.cpp (default: %(default)s)",
    )
    parser.add_argument("--base", type=Path, metavar="DIR", help="the base model (default: where the run had it)")
    parser.add_argument("--dtype", choices=DTYPES, help="type of the weights of a whole model (default: the base's)")


def wrong_leaving(options: argparse.Namespace) -> str | None:
    """Return what is wrong with the options of ``export``; None if they fit together."""
    learned = options.adapter or options.person is not None
    if (options.file is None, learned, options.to is None) not in ((False, False, True), (True, True, False)):
        return "export takes a FILE, or --to OUT with --adapter or --person NAME"
    given = {"--as": options.form != PEFT, "--base": options.base, "--dtype": options.dtype}
    alone = [flag for flag, value in given.items() if value and not learned]
    if alone:
        return f"{alone[0]} goes with --adapter or --person NAME"
    if options.form == PEFT and (options.base or options.dtype):
        return "--base and --dtype are for a whole model; add --as merged or --as gguf"
    return None


def leave(options: argparse.Namespace) -> Iterable[str]:
    """Write what a run learned to ``options.to``; yield what was written.

    Raises:
        ConfigError: the run learned nothing that can be written in this form, or ``options.to`` exists.
        NoRunError: there is no run.
        PeopleError: the book of everybody's adapters is unreadable.
    """
    run, to = open_run(options.ledger), Path(options.to)
    if run.folder is None:
        raise ConfigError(f"{options.ledger} is a ledger alone; name the folder of a run")
    if os.path.lexists(to):
        raise ConfigError(f"{to} exists; name a new {'file' if options.form == GGUF else 'folder'}")
    if not to.absolute().parent.is_dir():
        raise ConfigError(f"there is no folder {to.absolute().parent}; create it, or name another")
    with tempfile.TemporaryDirectory(prefix=".openclaw-export-", dir=to.absolute().parent) as scratch:
        learned = _of_person(run.folder, options.person, Path(scratch)) if options.person is not None else _newest(run)
        if options.form == PEFT:
            if not learned.is_adapter:
                raise ConfigError("this run trains all weights and has no adapter; add --as merged or --as gguf")
            copy_adapter(learned.place, to)
            yield f"wrote {learned.what} to {to}: a PEFT adapter of {run.trainer_arguments().hf_checkpoint}{learned.more}"
            return
        yield from _whole_model(learned, base_of(run, options.base), to, Path(scratch), options.form, options.dtype)
        yield f"wrote {learned.what} to {to}{learned.more}"


def write_version(run: RunFolder, version: str, person: str | None, to: Path) -> None:
    """Write the whole model of a kept version to the new folder ``to``: of everybody's weights, or with a person's adapter.

    Raises:
        ConfigError: it is not kept, or cannot be read; `MegatronError` if only Megatron's tool can.
        PeopleError: the book of everybody's adapters is unreadable.
    """
    assert run.folder is not None
    with tempfile.TemporaryDirectory(prefix=".openclaw-export-", dir=to.parent) as scratch:
        if person is not None:
            learned = _of_person(run.folder, person, Path(scratch), version)
        else:
            saved = newest_of_version(checkpoints_of(run.folder), version)
            if saved is None:
                raise ConfigError(f"{run.shown} keeps no checkpoint of version {version}")
            learned = _in_checkpoint(saved)
        for _ in _whole_model(learned, base_of(run), to, Path(scratch), MERGED, None):
            continue


def _of_person(folder: Path, person: str, scratch: Path, version: str | None = None) -> Learned:
    """Return a copy of a version of a person's adapter, after a look at its digest; None: of the one that serves."""
    kept = export_adapter(folder, person, scratch / ADAPTER, version)
    return Learned(scratch / ADAPTER, f"version {kept.number}", True, f", SHA-256 {kept.sha256}")


def _newest(run: RunFolder) -> Learned:
    """Return what the newest checkpoint of everybody's weights holds."""
    assert run.folder is not None
    arguments = run.trainer_arguments()
    if arguments.adapter_per_person:
        raise ConfigError(
            "each person of this run has an adapter; add --person NAME, or --person local for who has no key"
        )
    saved = saved_versions(checkpoints_of(run.folder))
    if not saved:
        raise ConfigError(f"{run.shown} has no checkpoint yet, so it has nothing that it learned; wait for one")
    with closing(run.open_ledger()) as ledger:
        serving = ledger.samples.live_weight_version(None)
    later = (
        "" if serving in (None, saved[-1].weight_version) else f"; version {serving} serves, and has no checkpoint yet"
    )
    return _in_checkpoint(saved[-1], later)


def _in_checkpoint(saved: SavedVersion, more: str = "") -> Learned:
    """Return what a checkpoint of everybody's weights holds."""
    what = f"version {saved.weight_version}, checkpoint {saved.folder.name}"
    adapter = saved.folder / ADAPTER
    if (adapter / CONFIG).is_file():
        return Learned(adapter, what, True, more)
    if saved.at_service is not None:
        how = ", as with: tinker checkpoint download {}" if saved.at_service.startswith("tinker://") else ": {}"
        raise ConfigError(
            f"the service that trained {what} has its weights; get them there{how.format(saved.at_service)}"
        )
    if not (saved.folder / STATE).is_dir():
        raise MegatronError(
            f"{saved.folder} is of Megatron; type: python slime/tools/convert_torch_dist_to_hf.py --help"
        )
    return Learned(saved.folder, what, False, more)


def base_of(run: RunFolder, named: Path | None = None) -> Path:
    """Return the folder of the base model, where the run had it or as ``named``.

    Raises:
        ConfigError: it is not there.
    """
    base = Path(named or run.trainer_arguments().hf_checkpoint or "")
    if not (base / "config.json").is_file():
        raise ConfigError(f"the base model is not at {base}; name its folder with --base")
    return base


def _whole_model(learned: Learned, base: Path, to: Path, scratch: Path, form: str, dtype: str | None) -> Iterable[str]:
    """Write the whole model in a form, and yield lines about it."""
    try:
        from slime.conversion.fsdp_to_hf import convert
        from slime.conversion.gguf_file import write_gguf
        from slime.conversion.merge_lora import merge
    except ImportError as error:
        raise ConfigError(f"a whole model needs the environment that trains ({error}); see scripts/setup.sh") from error
    folder = scratch / MERGED
    try:
        if learned.is_adapter:
            lines = merge(base, learned.place, folder, dtype=dtype).splitlines()
        else:
            lines = convert(learned.place, base, folder, dtype=dtype).splitlines()
        yield from (line for line in lines if line.startswith("warning:"))
        if form == GGUF:
            yield write_gguf(folder, to)
        else:
            folder.replace(to)
    except SlimeError as error:
        raise ConfigError(str(error)) from error
