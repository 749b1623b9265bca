"""Every command of every page works as written, as far as a machine without a GPU, network and hours can tell.

``python -m tests.page_commands`` lists the commands, says how each is tested, and runs the others where they can run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.page_commands.blocks import Block, pages, read_page
from tests.page_commands.check import check_command, check_program
from tests.page_commands.gateway import Gateway, running_gateway
from tests.page_commands.rules import rule_of
from tests.page_commands.stage import make_ledger, make_stage

PAGES = [page for page in pages() if read_page(page)[1]]
PROGRAMS = [block for page in pages() for block in read_page(page)[0] if block.language == "python"]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("gateway")) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_ledger(tmp_path_factory.mktemp("ledger") / "ledger.sqlite")


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_work(page: str, tmp_path: Path, gateway: Gateway, ledger: Path) -> None:
    stage = make_stage(tmp_path / "repository", page, ledger)
    failed: list[str] = []
    done: set[tuple[str, tuple[str, ...]]] = set()
    for command in read_page(page)[1]:
        if (command.text, command.before) in done:
            continue
        done.add((command.text, command.before))
        try:
            check_command(command, rule_of(command), stage, gateway)
        except AssertionError as error:
            failed.append(str(error))
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("block", PROGRAMS, ids=lambda block: f"{block.page}:{block.line}")
def test_a_program_of_a_page_works(block: Block, tmp_path: Path, gateway: Gateway, ledger: Path) -> None:
    check_program(block, make_stage(tmp_path / "repository", block.page, ledger), gateway)
