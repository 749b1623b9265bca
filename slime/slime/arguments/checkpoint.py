"""Flags of checkpoints and of resuming, and the checks of the folders that a run reads and writes."""

from __future__ import annotations

import json
import os
import pickle
import re
import shlex
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from groundwork.checkpoint_names import AT_SERVICE, LATEST, PEOPLE, newest_checkpoint, others_than
from groundwork.command_line import nearest_path
from slime.args import Arguments, required
from slime.arguments.option import Group, Option, flag_of
from slime.arguments.placement import is_rented
from slime.exceptions import CheckpointError
from slime.utils.model_config import read_config, text_config

CHECKPOINT = Group(
    "checkpoints",
    (
        Option(
            "--hf-checkpoint",
            "Hugging Face folder: tokenizer, config, engine model, start weights",
            aliases=("--model-path",),
        ),
        Option(
            "--ref-load", "weights of the reference model, and start weights without --load; default: --hf-checkpoint"
        ),
        Option(
            "--load",
            "checkpoint root to start from (weights, optimizer, counters), or one checkpoint in it: iter_0000500, checkpoint-500, "
            "checkpoint-latest",
            aliases=("--resume-from-checkpoint",),
        ),
        Option("--save", "checkpoint root", aliases=("--save-dir",)),
        Option("--save-interval", "rollouts between checkpoints; 1 with --adapter-per-person", int),
        Option(
            "--save-keep",
            "newest checkpoints to keep in --save, those with the same weights counted once; 0 keeps all",
            int,
            3,
        ),
        Option("--save-hf", "also write a Hugging Face folder at this path, which contains {rollout_id}"),
        Option("--resume", "continue from the newest checkpoint in --save", bool),
        Option(
            "--max-trainer-restarts",
            "automatic restarts from the last checkpoint in --save after a trainer rank or the rollout manager died; "
            "the count resets with each checkpoint; 0 ends the run instead",
            int,
            3,
        ),
        Option("--start-rollout-id", "first rollout id; default: from the checkpoint, else 0", int),
    ),
)


CONTINUE_VARIABLE = "SLIME_CONTINUE_WITH"
"""The variable in which a launcher gives the command that continues the run it starts."""


def check_paths(args: Arguments) -> list[str]:
    """Return the problems, one line each."""
    problems = []
    if not args.hf_checkpoint:
        problems.append("no model: add --hf-checkpoint FOLDER")
    missing: dict[str, str] = {}
    for flag in ("hf_checkpoint", "ref_load", "prm_model_path"):  # the last two default to the first
        path = getattr(args, flag)
        if path and not Path(path).is_dir():
            missing.setdefault(path, f"{flag_of(flag)} {path}: no such folder{nearest_path(path)}")
    problems += missing.values()
    if args.load and not args.resume and not _loadable(args):
        problems.append(
            f"--load {args.load}: no such folder with a checkpoint or a Hugging Face model{others_than(args.load)}; remove it to "
            "start from --ref-load, or name the folder of --save to continue there once it has one"
        )
    if args.save_interval is not None and not args.save:
        problems.append("--save-interval needs --save FOLDER")
    if args.resume and not args.save:
        problems.append("--resume needs --save FOLDER, the checkpoint folder of the run to continue")
    if args.resume and args.save and not _goes_on(args):
        problems.append(
            f"--load {args.load} contradicts --resume, which continues from --save {args.save}; remove one of them"
        )
    if args.resume and args.start_rollout_id is not None:
        problems.append(
            "--start-rollout-id contradicts --resume, which continues after its checkpoint; remove one of them"
        )
    if args.resume and args.save and not Path(args.save, LATEST).is_file():
        problems.append(f"--resume: {args.save} holds no checkpoint ({LATEST} is missing); start without --resume")
    problems += taken_folder(args)
    if (
        args.debug_train_only
        and not args.load_debug_rollout_data
        and args.rollout_function_path.startswith(("slime.rollout.sglang", "slime.rollout.fully_async"))
    ):
        problems.append(
            "--debug-train-only needs --load-debug-rollout-data PATH, or a rollout function that needs no engine"
        )
    return problems


def taken_folder(args: Arguments) -> list[str]:
    """Return a line if a new run would overwrite the checkpoints of another one."""
    if args.resume or not args.save or _goes_on(args) or not Path(args.save, LATEST).is_file():
        return []
    if args.load and (number := _in_save(args)) is not None:
        marker = shlex.quote(str(Path(args.save, LATEST)))
        return [
            f"--load {args.load} is an earlier checkpoint of --save {args.save}; to go back to it and take the later steps again, "
            f"type: echo {number} > {marker}, and replace --load with --resume; or name another folder with --save"
        ]
    return [
        f"--save {args.save} holds checkpoints of an earlier run; add --resume to continue it, or name another folder"
    ]


def _in_save(args: Arguments) -> int | None:
    """Return the number of the checkpoint in --save that --load names, None if it names no such one."""
    folder = Path(required("--load", args.load)).resolve()
    number = folder.name.removeprefix("iter_")
    return int(number) if folder.parent == Path(str(args.save)).resolve() and number.isdecimal() else None


def _loadable(args: Arguments) -> bool:
    """Whether --load names a checkpoint, a model, or the folder of --save, which a first run may find empty."""
    folder = Path(required("--load", args.load))
    there = any((folder / name).is_file() for name in (LATEST, "meta.json", "config.json"))
    return there or _goes_on(args)


def _goes_on(args: Arguments) -> bool:
    """Whether --load and --save name the same folder, however spelled."""
    if not args.load or not args.save:
        return False
    return Path(args.load).resolve() == Path(args.save).resolve()


INDEX = ".metadata"
_LAYER = re.compile(r"(?:decoder\.)?layers\.(\d+)\.")
_FSDP, _MEGATRON = "model.hf.", "model."
_STACKED = "decoder.layers.self_attention."
_PADDING = 64
"""Megatron pads the vocabulary to a multiple of the tensor-parallel ranks."""
_DAMAGED = (
    *(pickle.UnpicklingError, EOFError, AttributeError, LookupError, TypeError, ValueError, MemoryError),
    *(OverflowError, RecursionError),
)
"""What reading a damaged pickle raises."""
Shapes = dict[str, tuple[int, ...]]


class CheckpointIndex(NamedTuple):
    """The index of a distributed checkpoint: shape of each tensor, and the bytes that each file needs at least."""

    shapes: Shapes
    files: dict[str, int]


class _Inert:
    """Stands for any object of a pickle: keeps its arguments and state, and does nothing."""

    def __new__(cls, *arguments: Any, **_: Any) -> _Inert:
        made = object.__new__(cls)
        made.arguments, made.state = arguments, {}
        return made

    arguments: tuple[Any, ...]
    state: Any

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def append(self, value: Any) -> None:
        pass

    extend = add = append


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        return _Inert


def read_index(folder: Path) -> CheckpointIndex:
    """Return the index in a checkpoint's ``state`` folder.

    Raises:
        ValueError: it is damaged.
        OSError: it cannot be read.
    """
    try:
        with open(folder / INDEX, "rb") as file:
            state = _PlainUnpickler(file).load().state
        shapes = {
            name: tuple(entry.state["size"].arguments[0])
            for name, entry in state["state_dict_metadata"].items()
            if isinstance(entry.state, dict) and "size" in entry.state
        }
        files: dict[str, int] = {}
        for entry in state["storage_data"].values():
            part = entry.state
            end = part["offset"] + part["length"]
            files[part["relative_path"]] = max(files.get(part["relative_path"], 0), end)
    except _DAMAGED as error:
        raise ValueError(f"not a whole index ({type(error).__name__})") from error
    return CheckpointIndex(shapes, files)


# Whole or not


def damage(folder: Path) -> str | None:
    """Return which file of the checkpoint ``folder`` is missing, cut off or unreadable and how; None if it is whole."""
    try:
        for file, problem in _looked_at(folder):
            if problem:
                return f"{file.relative_to(folder.parent)} {problem}"
    except OSError as error:
        return f"{error.filename or folder} cannot be read ({error.strerror})"
    return None


def _looked_at(folder: Path) -> Iterator[tuple[Path, str | None]]:
    meta_file, state = folder / "meta.json", folder / "state"
    if not meta_file.is_file():
        yield meta_file, "is missing"
        return
    try:
        meta = json.loads(meta_file.read_text())
        ranks, rollout_id = int(meta.get("world_size", 0)), meta.get("rollout_id")
    except (ValueError, AttributeError, TypeError):
        yield meta_file, "is damaged"
        return
    if not {PEOPLE, AT_SERVICE} & {*meta}:  # else everybody's own folder has the weights, or a service
        if not (state / INDEX).is_file():
            yield state / INDEX, "is missing"
            return
        try:
            index = read_index(state)
        except ValueError:
            yield state / INDEX, "is damaged"
            return
        for name, size in index.files.items():
            file = state / name
            yield file, None if file.is_file() and file.stat().st_size >= size else _lost(file, size)
    archives = [*(folder / f"rng_{rank}.pt" for rank in range(ranks)), *folder.glob("state/common.pt")]
    yield from ((file, _archive_problem(file)) for file in archives)
    position = folder.parent / "rollout" / f"global_dataset_state_dict_{rollout_id}.pt"
    if position.exists():
        yield position, _archive_problem(position)


def _lost(file: Path, size: int) -> str:
    return f"has {file.stat().st_size} of {size} bytes" if file.is_file() else "is missing"


def _archive_problem(file: Path) -> str | None:
    """Return what is wrong with a file of ``torch.save``; its index is at its end."""
    if not file.is_file():
        return "is missing"
    return None if zipfile.is_zipfile(file) else "is damaged"


# This run's


def difference(args: Arguments, folder: Path) -> str | None:
    """Return how the model in the whole checkpoint ``folder`` differs from ``--hf-checkpoint``; None if it does not."""
    meta = json.loads((folder / "meta.json").read_text())
    if meta.get("role", "policy") != "policy":
        return None
    if bool(meta.get("lora")) != bool(args.use_lora):
        kind, do = ("LoRA adapters", "add") if meta.get("lora") else ("full weights", "remove")
        return f"holds {kind}: {do} --use-lora"
    if (PEOPLE in meta) != bool(args.adapter_per_person):
        kind, do = ("an adapter for each person", "add") if PEOPLE in meta else ("one policy for everybody", "remove")
        return f"holds {kind}: {do} --adapter-per-person"
    if (AT_SERVICE in meta) and (scheme := str(meta[AT_SERVICE]).partition(":")[0]) != args.train_backend:
        return f"holds a state of a service: add --train-backend {scheme}"
    if AT_SERVICE not in meta and is_rented(args):
        return "holds weights, which no service reads"
    if AT_SERVICE in meta and meta.get("model") != args.tinker_model:
        return f"is of {meta.get('model')}: give --tinker-model {meta.get('model')}, or start in another folder"
    try:
        config = text_config(read_config(Path(args.hf_checkpoint)))
        odd = list(_odd_sizes(read_index(folder / "state").shapes, config, Path(args.hf_checkpoint)))
    except (CheckpointError, OSError, LookupError, TypeError, ValueError):
        return None  # other checks name a model that cannot be read
    if not odd:
        return None
    return (
        f"is of another model than --hf-checkpoint {args.hf_checkpoint} (HF_CKPT): {', '.join(odd[:3])}; "
        f"give the model that it started from{_origin(meta)}, or start in another folder"
    )


def _origin(meta: dict[str, Any]) -> str:
    return f", {meta['hf_checkpoint']}" if meta.get("hf_checkpoint") else ""


def _odd_sizes(shapes: Shapes, config: dict[str, Any], model: Path) -> Iterator[str]:
    """Yield ``layers 4, not 6`` for each size that differs."""
    if any(name.startswith(_FSDP) for name in shapes):
        yield from _odd_of_fsdp({name.removeprefix(_FSDP): shape for name, shape in shapes.items()}, config, model)
    else:
        yield from _odd_of_megatron({name.removeprefix(_MEGATRON): shape for name, shape in shapes.items()}, config)


def _odd_of_fsdp(shapes: Shapes, config: dict[str, Any], model: Path) -> Iterator[str]:
    weights = {name: shape for name, shape in shapes.items() if not name.startswith("optimizer.")}
    by_end = {name.removeprefix("model.").removeprefix("language_model."): shape for name, shape in weights.items()}
    embedding = by_end.get("embed_tokens.weight")
    if embedding is not None:
        yield from _unlike("vocabulary", embedding[0], config.get("vocab_size"))
        yield from _unlike("hidden size", embedding[1], config.get("hidden_size"))
    layers = {int(found[1]) for name in by_end if (found := _LAYER.match(name))}
    if layers:
        yield from _unlike("layers", max(layers) + 1, config.get("num_hidden_layers"))
    theirs = _shapes_in(model)
    for name, shape in by_end.items():
        base, is_adapter, part = name.partition(".lora_")
        other = theirs.get(f"{base}.weight" if is_adapter else name)
        if other is None or (is_adapter and len(other) != 2):
            continue
        if is_adapter:
            mine, other = (shape[1:], other[1:]) if part.startswith("A") else (shape[:1], other[:1])
        else:
            mine = shape
        if mine != other:
            yield f"{name} {_sizes(mine)}, not {_sizes(other)}"


def _odd_of_megatron(shapes: Shapes, config: dict[str, Any]) -> Iterator[str]:
    embedding = shapes.get("embedding.word_embeddings.weight")
    vocabulary = config.get("vocab_size")
    if embedding is not None and vocabulary is not None:
        if not vocabulary <= embedding[0] < vocabulary + _PADDING:
            yield f"vocabulary {embedding[0]}, not {vocabulary}"
        yield from _unlike("hidden size", embedding[1], config.get("hidden_size"))
    numbered = {int(found[1]) for name in shapes if (found := _LAYER.match(name))}
    stacked = {shape[0] for name, shape in shapes.items() if name.startswith(_STACKED) and len(shape) > 1}
    if numbered or stacked:
        yield from _unlike("layers", max(numbered) + 1 if numbered else max(stacked), config.get("num_hidden_layers"))


def _unlike(what: str, mine: int, theirs: Any) -> Iterator[str]:
    if theirs is not None and mine != theirs:
        yield f"{what} {mine}, not {theirs}"


def _sizes(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _shapes_in(model: Path) -> Shapes:
    """Return the shapes of a Hugging Face folder's weights, from the headers of its files, without the outer prefixes."""
    found: Shapes = {}
    for file in model.glob("*.safetensors"):
        with open(file, "rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        for name, entry in header.items():
            if name != "__metadata__":
                found[name.removeprefix("model.").removeprefix("language_model.")] = tuple(entry["shape"])
    return found


# The check of the command line


def check_resumed(args: Arguments) -> list[str]:
    """Return one line about the checkpoint of ``--resume`` or ``--load`` if the run cannot continue from it."""
    given = args.save if args.resume else args.load
    if not given or not Path(given).is_dir():
        return []
    roots = [Path(given)]
    if args.resume and args.use_critic and args.critic_save:
        roots.append(Path(args.critic_save))
    for root in roots:
        folder, problem = newest_checkpoint(root)
        if problem is None and folder is not None:
            problem = damage(folder)
        if problem:
            return [f"{root}: {problem}; {_way_on(roots, folder)}"]
    folder, _ = newest_checkpoint(roots[0])
    other = difference(args, folder) if folder else None
    return [f"{folder} {other}"] if other else []


def _way_on(roots: list[Path], lost: Path | None) -> str:
    """Say how to continue from the newest checkpoint that is whole in all ``roots``."""
    if lost in roots:
        return "name another checkpoint"
    whole = [
        path
        for path in roots[0].glob("iter_*")
        if path.name.removeprefix("iter_").isdecimal()
        and (lost is None or path.name < lost.name)
        and all((root / path.name).is_dir() and damage(root / path.name) is None for root in roots)
    ]
    if not whole:
        return "no earlier checkpoint there is whole: restore the file, or start in another folder"
    newest = max(whole, key=lambda path: path.name).name
    markers = shlex.join(str(root / LATEST) for root in roots)
    return (
        f"{newest} is the newest whole checkpoint. To go on from it, and take the later steps again, type: "
        f"echo {int(newest.removeprefix('iter_'))} | tee {markers}"
    )


CANNOT_WRITE = "cannot be written to"
_RAYS_COPY = "/runtime_resources/working_dir_files/_ray_pkg_"
MIN_BYTES = 32 * 2**20
"""Room that a run needs at least on a disk; its ledger alone reserves half of it."""
_IN_RUN_FOLDER = dict.fromkeys(("arguments.json", "metrics.jsonl", "driver.log", "runtime.log"), False) | {"logs": True}
_IN_SAVE = {"rollout": True, LATEST: False, "ledger.sqlite": False, "save.lock": False}
"""What a run opens in the folder, by name: whether it is a folder."""


def in_rays_copy(path: Path) -> bool:
    """Return whether a path is in the copy that ``ray job submit --working-dir`` makes of a folder, and deletes after the job."""
    return _RAYS_COPY in path.absolute().as_posix()


def check_written(args: Arguments) -> list[str]:
    """Return one line for each folder that this machine or user cannot write."""
    problems: dict[str, str] = {}
    for flag, folder, inside in _folders(args):
        if flag != "--run-dir" and in_rays_copy(Path(folder)):  # without --save a run leaves nothing to lose
            reason = "Ray deletes this copy of the job's folder after the job"
            problems.setdefault(
                reason, f"{flag} {folder} {CANNOT_WRITE}: {reason}; name one that stays, as an absolute path"
            )
        elif reason := _reason(Path(folder), inside):
            problems.setdefault(reason, f"{flag} {folder} {CANNOT_WRITE}: {reason}; mend that, or name another folder")
    return list(problems.values())


def _folders(args: Arguments) -> Iterator[tuple[str, str, dict[str, bool]]]:
    """Yield flag, folder and what the run opens in it."""
    yield "--run-dir", str(args.run_dir), _IN_RUN_FOLDER
    for flag, folder in (("--save", args.save), ("--critic-save", args.critic_save if args.use_critic else None)):
        if folder:
            yield flag, folder, _IN_SAVE
    for flag in ("save_hf", "save_debug_rollout_data", "save_debug_train_data"):
        if template := getattr(args, flag):  # a path with {rollout_id}, perhaps in the name of a folder
            whole = Path(template).parts[:-1]
            names = whole[: next((place for place, part in enumerate(whole) if "{" in part), len(whole))]
            yield flag_of(flag), str(Path(*names)) if names else ".", {}
    for flag in ("tensorboard_dir", "wandb_dir", "update_weight_disk_dir"):
        if folder := getattr(args, flag):
            yield flag_of(flag), folder, {}


def _reason(folder: Path, inside: dict[str, bool]) -> str | None:
    """Return why ``folder`` cannot be written, or None."""
    there = next(parent for parent in (folder, *folder.absolute().parents) if os.path.lexists(parent))
    if not there.exists():
        return f"{there} is a link to nothing"
    if not there.is_dir():
        return f"{there} is a file"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{there} is {_closed(there)}"
    room = os.statvfs(there)
    free = room.f_frsize * (room.f_bfree if os.geteuid() == 0 else room.f_bavail)
    if free < MIN_BYTES:
        return f"its disk has {free >> 20} MiB left, and a run needs at least {MIN_BYTES >> 20}"
    if there != folder:
        return None
    for name, is_folder in inside.items():
        part = folder / name
        if not os.path.lexists(part):
            continue
        if is_folder != part.is_dir():
            return f"{part} is {'not a folder' if is_folder else 'not a file'}"
        if not os.access(part, os.W_OK | os.X_OK if is_folder else os.W_OK):
            return f"{part} is {_closed(part)}"
    return None


def _closed(path: Path) -> str:
    read_only = os.statvfs(path).f_flag & os.ST_RDONLY
    return "on a read-only file system" if read_only else f"not writable by user {os.geteuid()}"
