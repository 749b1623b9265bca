"""Where a model lies, and what to type when it is missing."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from groundwork.checkpoint_names import named_checkpoint, number_of, origin_of, others_than, trained_checkpoint
from groundwork.command_line import nearest, nearest_path

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "models"
TINY = REPOSITORY / ".cache" / "tiny"
BUILD_TINY = "bash scripts/build_tiny_models.sh"
COMMAND = "python -m openclaw.models"
USUAL = "Qwen3-4B"
TINY_MODEL = "tiny"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
LFS = b"version https://git-lfs"
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tiktoken.model")
WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")


@dataclass(frozen=True)
class KnownModel:
    """A model of a launch script.

    Attributes:
        name: its folder under ``models/``.
        hub: its name on the hub.
        gigabytes: size of the download, rounded up; the download itself asks the hub.
        licence: of the weights.
    """

    name: str
    hub: str
    gigabytes: float
    licence: str


KNOWN = (
    KnownModel("Qwen3-1.7B", "Qwen/Qwen3-1.7B", 4.1, "apache-2.0"),
    KnownModel("Qwen3-4B", "Qwen/Qwen3-4B", 8.1, "apache-2.0"),
    KnownModel("Qwen3-8B", "Qwen/Qwen3-8B", 16.4, "apache-2.0"),
    KnownModel("Qwen3.5-4B", "Qwen/Qwen3.5-4B", 9.4, "apache-2.0"),
)

NEAREST = {"qwen3-7b": "qwen3-8B", "qwen3.5-vl": "qwen3-vl-8B"}
"""Models that guides name and nobody released, in lower case, and the shape of the nearest one that is there."""


def released(name: str) -> str:
    """Return the name of a model, or in the place of one that was never released the nearest that was."""
    return NEAREST.get(name.lower(), name)


def hub_name(name: str) -> str:
    """Return a model's name on the hub: ``Qwen/Qwen3-4B`` for ``Qwen3-4B`` and ``qwen3-4B``."""
    name = released(name)
    if sees := re.fullmatch(r"qwen3-vl-(\d+b)", name.lower()):
        return f"Qwen/Qwen3-VL-{sees[1].upper()}-Instruct"  # those without a further word are no models of the hub
    known = next((item.hub for item in KNOWN if item.name.lower() == name.lower()), None)
    return known or (name if "/" in name else f"Qwen/{name}")


def place_of(name: str) -> Path:
    """Return the folder where the launch scripts look for a model."""
    return FOLDER / hub_name(name).partition("/")[2]


def tokenizer_of(name: str) -> Path:
    """Return the folder for a model's tokenizer and configuration alone, where a service has the weights."""
    return FOLDER / "tokenizers" / hub_name(name).partition("/")[2]


def shown(path: Path) -> str:
    """Return a path relative to the repository if it lies there."""
    return str(path.relative_to(REPOSITORY)) if path.is_relative_to(REPOSITORY) else str(path)


def download_command(path: str | Path, usual: str = USUAL) -> str:
    """Return the command that brings the model of a missing folder: a download, or the build of the tiny model.

    It is the command for the model ``usual`` if the name is none of Qwen's; ``TINY_MODEL`` is built, not downloaded. It
    puts the model into the missing folder.
    """
    folder = Path(path).expanduser().absolute()
    if folder.parent == TINY:
        return BUILD_TINY
    there = shlex.quote(str(path))
    named = re.fullmatch(r"qwen[\d.]+(-vl)?-[\d.]+b(-\w+)*", folder.name.lower())
    if folder.parent == FOLDER / "tokenizers":
        return f"{COMMAND} {folder.name if named else f'OWNER/{folder.name}'} --tokenizer"
    if not named and usual == TINY_MODEL:
        return f"{BUILD_TINY} --output {there}"
    name = released(folder.name) if named else usual
    return f"{COMMAND} {name}" if folder == place_of(name) else f"{COMMAND} {name} --folder {there}"


def broken_model(folder: Path, *, tokenizer: bool = True, weights: bool = True) -> str | None:
    """Return why an existing path is not a model that can be loaded, in one line; None if it looks like one.

    Args:
        folder: the path.
        tokenizer: whether the tokenizer must be in it.
        weights: whether the weights must be in it.
    """
    if not folder.is_dir():
        return "it is a file; name its folder"
    if why := _of_trainer(folder):
        return why
    config = folder / "config.json"
    try:
        values = json.loads(config.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"it has no config.json; {_inside(folder) or 'name the folder of a Hugging Face checkpoint'}"
    except OSError as error:
        return f"its config.json cannot be read ({error.strerror}); make it readable"
    except (ValueError, RecursionError):
        return "its config.json is not JSON; fetch it again"
    if not isinstance(values, dict) or not isinstance(values.get("model_type"), str):
        return "its config.json names no model_type; name the folder of a Hugging Face checkpoint"
    if "auto_map" not in values and (near := _unknown_type(values["model_type"])) is not None:
        return f"its config.json has the unknown model_type {values['model_type']!r}{near}; name another model"
    try:
        missing = missing_files(folder) if weights else []
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        return f"its {INDEX} cannot be read; fetch it again"
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        return f"it lacks the weights {missing[0]}{more}; fetch them, or name another folder"
    if pointer := next((path for pattern in WEIGHTS for path in folder.glob(pattern) if _is_pointer(path)), None):
        return f"{pointer.name} is a Git LFS pointer, not weights; type: git -C {shlex.quote(str(folder))} lfs pull"
    if tokenizer and not any((folder / name).is_file() for name in TOKENIZERS):
        return f"it has no tokenizer ({TOKENIZERS[0]}); copy it from the model that this one was made of"
    return None


def served_folder(name: str) -> str:
    """Return the Hugging Face folder of a run's checkpoint if there is one beside it, ``hf-499`` for ``checkpoint-500``.

    Any other name is returned unchanged.
    """
    checkpoint = trained_checkpoint(name)
    if checkpoint is None:
        return name
    try:
        written = checkpoint.parent / f"hf-{number_of(checkpoint) - 1}"
    except ValueError:
        return name
    return str(written) if (written / "config.json").is_file() else name


def _of_trainer(folder: Path) -> str | None:
    """Return how to get the weights of a checkpoint of the trainer; None for another folder."""
    checkpoint = trained_checkpoint(str(folder))
    if checkpoint is None:
        return None
    origin = shlex.quote(origin_of(checkpoint) or "MODEL")
    return (
        "it is a checkpoint of the trainer, without Hugging Face weights; convert it: python slime/tools/convert_fsdp_to_hf.py "
        f"--input-dir {shlex.quote(str(checkpoint))} --origin-hf-dir {origin} --output-dir FOLDER"
    )


def _inside(folder: Path) -> str | None:
    """Return advice if a folder below has the model: a cache of the hub, or a folder of several models."""
    try:
        result = next(
            (path for pattern in ("*", "snapshots/*") for path in folder.glob(f"{pattern}/config.json")), None
        )
    except OSError:
        return None
    return f"did you mean {result.parent}?" if result else None


def _is_pointer(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(len(LFS)) == LFS


def _unknown_type(model_type: str) -> str | None:
    """Return the nearest type as advice if the installed transformers has no such model; None if it has, or is missing."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or not spec.submodule_search_locations:
        return None
    models = Path(next(iter(spec.submodule_search_locations)), "models")
    known = [path.name for path in models.iterdir() if path.is_dir()] if models.is_dir() else []
    word = model_type.replace("-", "_")
    return None if not known or any(word.startswith(name) for name in known) else nearest(word, known)


def missing_model(name: str, *, weights: bool = True) -> str | None:
    """Return why a checkpoint folder, or a name in the hub's cache on this machine, cannot be served; None if it can.

    Args:
        name: the folder or the name.
        weights: whether the weights are needed; without them only tokenizer and config are.
    """
    folder = Path(named_checkpoint(name)).expanduser()
    if folder.is_dir():
        if why := _of_trainer(folder) if weights else None:
            return f"{name} is not a model: {why}"
        missing = missing_files(folder) if weights else []
        if missing:
            return f"{name} lacks {', '.join(missing)}; download a model with: {download_command(name)}"
        why = broken_model(folder, tokenizer=False) if weights else None
        return f"{name} is not a model: {why}" if why else None
    if not _is_hub_name(name):
        if others := others_than(name):
            return f"{name}: no such folder{others}"
        near = nearest_path(folder)
        return f"{name}: no such folder{near}{' Or' if near else ';'} get a model with: {download_command(name)}"
    return None if _in_cache(name) else f"{name} is not on this machine; download it with: {COMMAND} {name}"


def _is_hub_name(name: str) -> bool:
    """Return whether a name can only be OWNER/NAME: ``models/nope`` is a folder that is missing."""
    owner = name.partition("/")[0]
    return bool(re.fullmatch(r"\w[\w.-]*/[\w.-]+", name)) and owner != FOLDER.name and not Path(owner).is_dir()


def _in_cache(name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(name, "config.json"), str)


def missing_files(folder: Path) -> list[str]:
    """Return the files that a checkpoint folder lacks; empty if it is whole.

    Raises:
        ValueError: its index is not JSON.
    """
    needed = ["config.json"]
    index = folder / INDEX
    if index.is_file():
        needed += sorted(set(json.loads(index.read_text())["weight_map"].values()))
    elif not any(any(folder.glob(pattern)) for pattern in WEIGHTS):
        needed.append(SINGLE)
    return [name for name in needed if not (folder / name).is_file()]
