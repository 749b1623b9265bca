"""The page that helps to choose a method has every method, with what its declaration and its plan say."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from openclaw.launch.methods import FoundMethod, methods_of

SCRIPTS = {
    "8 GPUs": r"qwen3_4b_openclaw_NAME\.sh",
    "one GPU with 24 GB": r"qwen3_1_7b_openclaw_NAME_24gb\.sh",
    "one GPU with 12": r"qwen3_4b_openclaw_NAME_16gb\.sh",
}
METHODS = {method.config.name: method for method in methods_of()}


@pytest.fixture
def page(repository: Path) -> str:
    return (repository / "instructions" / "choosing.md").read_text()


def rows(page: str) -> dict[str, list[str]]:
    """Return the cells of each method's row."""
    found = re.findall(r"^\| \[`(\w+)`\]\((.+)\) \| (.+) \|$", page, re.MULTILINE)
    return {name: [link, *cells.split(" | ")] for name, link, cells in found}


def test_every_method_has_a_row_that_links_its_folder(page: str) -> None:
    assert rows(page).keys() == METHODS.keys()
    for name, (link, *_) in rows(page).items():
        assert METHODS[name].folder.name in link


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_row_says_what_the_method_declares(page: str, method: FoundMethod) -> None:
    config = method.config
    _, _, asked, teacher, rewards, _ = rows(page)[config.name]
    votes = str(config.defaults.get("PRM_M", 1))
    assert set(re.findall(r"\d+", asked)) == ({votes} if config.asks_judge else set())
    assert (rewards == "yes") == config.trains_rewards
    assert (teacher == "no") == (not config.fills)


@pytest.mark.parametrize("machine", SCRIPTS)
def test_a_machine_lists_the_methods_with_a_script(page: str, repository: Path, machine: str) -> None:
    [cells] = re.findall(rf"^\| {machine}.* \|$", page, re.MULTILINE)
    listing = subprocess.run(["git", "ls-files", "*.sh"], cwd=repository, capture_output=True, text=True, check=True)
    scripts = " ".join(listing.stdout.split())
    named = {name for name in METHODS if re.search(SCRIPTS[machine].replace("NAME", name), scripts)}
    assert set(re.findall(r"`(\w+)`", cells)) == named
