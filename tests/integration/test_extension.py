"""The extension by itself: its own tests under Node, and its types."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.helpers.node import node_packages


def run(*command: str | Path, cwd: Path) -> None:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_its_own_tests_pass(repository: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node on the PATH; install it (apt-get install nodejs npm)")
    run(node, "--test", cwd=repository / "extensions/rl-training-headers")


def test_its_types_hold(repository: Path) -> None:
    modules = node_packages("extension") / "node_modules"
    types = ("--typeRoots", modules / "@types")
    run(modules / ".bin/tsc", *types, cwd=repository / "extensions/rl-training-headers")


def test_openclaw_offers_what_it_uses(repository: Path, tmp_path: Path) -> None:
    """The types of the OpenClaw release in the lock file fit the part of them that the extension declares."""
    tools, openclaw = node_packages("extension") / "node_modules", node_packages("openclaw") / "node_modules/openclaw"
    options = {
        "lib": ["es2023", "dom"],
        "module": "nodenext",
        "noEmit": True,
        "paths": {"openclaw/*": [f"{openclaw}/dist/*.d.ts"]},
        "skipLibCheck": True,
        "strict": True,
        "target": "es2023",
        "typeRoots": [f"{tools}/@types"],
        "types": ["node"],
    }
    project = tmp_path / "tsconfig.json"
    files = [str(repository / "tests/openclaw/contract.ts")]
    project.write_text(json.dumps({"compilerOptions": options, "files": files}))
    run(tools / ".bin/tsc", "-p", project, cwd=tmp_path)
