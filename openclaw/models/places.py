"""Where a model lies, and what to type when it is missing."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from slime.utils.command_line import nearest_path

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "models"
TINY = REPOSITORY / ".cache" / "tiny"
BUILD_TINY = "bash scripts/build_tiny_models.sh"
COMMAND = "python -m openclaw.models"
USUAL = "Qwen3-4B"
TINY_MODEL = "tiny"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
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


def hub_name(name: str) -> str:
    """Return a model's name on the hub: ``Qwen/Qwen3-4B`` for ``Qwen3-4B`` and ``qwen3-4B``."""
    known = next((each.hub for each in KNOWN if each.name.lower() == name.lower()), None)
    return known or (name if "/" in name else f"Qwen/{name}")


def place_of(name: str) -> Path:
    """Return the folder where the launch scripts look for a model."""
    return FOLDER / hub_name(name).partition("/")[2]


def shown(path: Path) -> str:
    """Return a path relative to the repository if it lies there."""
    return str(path.relative_to(REPOSITORY)) if path.is_relative_to(REPOSITORY) else str(path)


def download_command(path: str | Path, usual: str = USUAL) -> str:
    """Return the command that brings the model of a missing folder: a download, or the build of the tiny model.

    It is the command for the model ``usual`` if the name is none of Qwen's; ``TINY_MODEL`` is built, not downloaded.
    """
    folder = Path(path).expanduser().absolute()
    if folder.parent == TINY:
        return BUILD_TINY
    if not re.fullmatch(r"qwen[\d.]+(-vl)?-[\d.]+b(-\w+)*", folder.name.lower()):
        return BUILD_TINY if usual == TINY_MODEL else f"{COMMAND} {usual}"
    if folder == place_of(folder.name):
        return f"{COMMAND} {folder.name}"
    return f"{COMMAND} {folder.name} --folder {shlex.quote(str(path))}"


def missing_model(name: str, *, weights: bool = True) -> str | None:
    """Return why a checkpoint folder, or a name in the hub's cache on this machine, cannot be served; None if it can.

    Args:
        name: the folder or the name.
        weights: whether the weights are needed; without them only tokenizer and config are.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        missing = missing_files(folder) if weights else []
        return (
            f"{name} lacks {', '.join(missing)}; download a model with: {download_command(name)}" if missing else None
        )
    if not _is_hub_name(name):
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
