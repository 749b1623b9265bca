"""Every import contract in `pyproject.toml` catches an import that it is there to forbid."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

FOLDERS = ("slime/groundwork", "slime/chat_codec", "slime/slime", "openclaw", "openclaw_combine", "agentrl")
FORBIDDEN = {
    "A package imports only packages below it": ("slime.rollout", "openclaw"),
    "The ground, the request path and agentrl import no torch, Ray or SGLang": ("openclaw.gateway", "torch"),
    "Imports between slime's packages go down only, so there are no cycles": ("slime.rollout", "slime.ray"),
    "Algorithms import torch, arguments, log probabilities and the numeric helpers only": ("slime.algorithms", "numpy"),
    "Reading the command line imports neither torch nor Ray": ("slime.arguments", "torch"),
    "Megatron is imported inside its back end only": ("slime.backends.trainer", "megatron"),
    "A room of openclaw imports only rooms below it": ("openclaw.ledger", "openclaw.gateway"),
    "No cycles inside a room of openclaw or agentrl": ("openclaw.judge.first", "openclaw.judge.second"),
    "The runtime knows neither ranks nor engines": ("openclaw.training", "slime.backends"),
    "What serves and judges knows no trainer": ("openclaw.engine", "slime.utils"),
    "A room of agentrl imports only rooms below it": ("agentrl.sandbox", "agentrl.rollout"),
    "Environments run without the runtime and the trainer": ("agentrl.sandbox", "openclaw.exceptions"),
    "The agent loop knows neither the server nor the trainer's processes": ("agentrl.rollout", "openclaw.gateway"),
}
"""One import of a module by another for each contract."""


def file_of(root: Path, module: str) -> Path:
    """Return the file of a module in a copy of the packages; a new one if there is none."""
    parts = module.split(".")
    place = root.joinpath(*(["slime"] if parts[0] in ("groundwork", "chat_codec", "slime") else []), *parts)
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def test_every_wall_stops_an_import(repository: Path, tmp_path: Path) -> None:
    settings = tomllib.loads((repository / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert [contract["name"] for contract in settings["contracts"]] == list(FORBIDDEN)
    for folder in FOLDERS:
        shutil.copytree(repository / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "*.json"))
    shutil.copy(repository / "pyproject.toml", tmp_path)
    for importer, imported in (*FORBIDDEN.values(), ("openclaw.judge.second", "openclaw.judge.first")):
        with file_of(tmp_path, importer).open("a") as file:
            file.write(f"\nimport {imported}\n")
    command = Path(sys.executable).with_name("lint-imports")
    paths = {"PYTHONPATH": os.pathsep.join(map(str, (tmp_path / "slime", tmp_path)))}
    run = subprocess.run(
        [command, "--no-cache"],
        cwd=tmp_path,
        env={**os.environ, **paths, "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
    _, _, report = run.stdout.partition("Broken contracts")
    sections = dict(re.findall(r"\n([^\n]+)\n-{5,}\n(.*?)(?=\n[^\n]+\n-{5,}\n|\Z)", report, re.DOTALL))
    assert sections.keys() == FORBIDDEN.keys(), run.stdout + run.stderr
    for name, (importer, imported) in FORBIDDEN.items():
        room = importer.rpartition(".")[0]
        caught = rf"{re.escape(importer)}\b.* -> {re.escape(imported)}\b|No cycles are allowed in {re.escape(room)}\."
        assert re.search(caught, sections[name]), sections[name]
