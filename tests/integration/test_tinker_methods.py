"""Every public method of the package ``tinker``, of this version and older ones, against our server; the page says what is answered."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab.tinker_methods import PAGE, page
from tests.helpers.tinker_server import NAME, REPOSITORY, TinkerServer

tinker = pytest.importorskip("tinker", reason="install the tinker extra")
SDKS = REPOSITORY / ".cache" / "tinker_sdks"
OLDER = ("0_26_2", "0_33_1")
pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]
KEY = "tml-of-a-test"
NEEDED = {
    "ServiceClient": ("create_lora_training_client", "create_sampling_client", "create_training_client_from_state"),
    "TrainingClient": (
        *("forward", "forward_backward", "forward_backward_custom", "optim_step", "save_state", "load_state"),
        *("save_weights_and_get_sampling_client", "save_weights_for_sampler", "get_info", "get_tokenizer"),
    ),
    "SamplingClient": ("sample", "compute_logprobs"),
    "RestClient": ("list_training_runs", "list_checkpoints", "list_user_checkpoints", "list_sessions"),
}
"""What any version must find."""


def found_with(server: TinkerServer, *paths: Path) -> dict[str, str]:
    """Return what the package finds that comes first on ``paths``."""
    environment = {
        **os.environ,
        **{"TINKER_API_KEY": KEY, "TINKER_BASE_URL": server.url, "HF_HUB_OFFLINE": "1"},
        "PYTHONPATH": os.pathsep.join(map(str, [*paths, REPOSITORY, REPOSITORY / "slime"])),
    }
    command = [sys.executable, "-m", "lab.tinker_methods", server.url, KEY, NAME]
    done = subprocess.run(
        command, cwd=server.model.parent, env=environment, capture_output=True, text=True, check=False, timeout=400
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["version"].replace(".", "_") == (paths[0].name if paths else tinker.__version__.replace(".", "_"))
    return found["found"]


def test_the_page_says_what_is_answered(tinker_server: TinkerServer) -> None:
    found = found_with(tinker_server)
    text = page(tinker.__version__, found)
    if os.environ.get("WRITE_PAGES"):
        PAGE.write_text(text)
    assert PAGE.read_text() == text, "WRITE_PAGES=1 writes the page"
    check(found)


@pytest.mark.parametrize("version", OLDER)
def test_an_older_package_is_answered(tinker_server: TinkerServer, version: str) -> None:
    if not (SDKS / version).is_dir():
        pytest.skip("needs older packages: bash scripts/setup_tinker_sdks.sh")
    check(found_with(tinker_server, SDKS / version))


def check(found: dict[str, str]) -> None:
    """Fail if a method that any program needs is refused."""
    needed = {f"{name}.{method}" for name, methods in NEEDED.items() for method in methods}
    assert {name: found.get(name, "missing") for name in needed if found.get(name, "missing")} == {}
