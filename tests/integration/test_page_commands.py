"""Every command of every page works as written, as far as a machine without a GPU, network and hours can tell.

``python -m tests.page_commands`` lists the commands, says how each is tested, and runs the others where they can run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.testkit.served_gateway import Gateway, running_gateway
from tests.page_commands.blocks import Block, Command, pages, read_page
from tests.page_commands.check import check_command, check_program
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


@pytest.mark.parametrize(
    "text",
    [
        "python -m benchmarks.losses --jsn FILE",
        "openclaw-rl inspect NOWHERE",
        "python -m openclaw.method check openclaw-nobody",
        "python -m slime.contract --custom-rm-path my_reward.reward",
        "python -m openclaw.launch --method combine --no-such-flag 1",
        "python slime/train.py --prompt-data FILE ... --lerning-rate 1",
        "bash openclaw-combine/run_nothing.sh",
        "bash openclaw-combine/run_tiny_cpu.sh --method nobody",
        "HF_CKP=m bash openclaw-combine/run_qwen3_4b_openclaw_combine.sh --model qwen3-5B",
        "scripts/setup.sh gup",
        "docker build --file scripts/Dockerfile .",
        "python -m openclaw.nothing",
        "curl http://127.0.0.1:30000/v1/nothing",
        'curl http://127.0.0.1:30000/v1/feedback -d \'{"response_id": "chatcmpl-...", "thumbs": "up"}\'',
        "curl http://127.0.0.1:30000/v1/feedback -H 'Content-Type: application/json' "
        '-d \'{"response_id": "chatcmpl-...", "thumbs": "sideways"}\'',
        "printf '%s' \"$(false)\" > keys && false",
    ],
)
def test_a_wrong_command_is_noticed(text: str, tmp_path: Path, gateway: Gateway, ledger: Path) -> None:
    stage = make_stage(tmp_path / "repository", "README.md", ledger)
    command = Command("page.md", 7, text)
    with pytest.raises(AssertionError, match=r"^page\.md:7: "):
        check_command(command, rule_of(command), stage, gateway)


@pytest.mark.parametrize("text", ["import no_such_module", "def answer():\n    return undefined", "1 / 0", "x = ("])
def test_a_wrong_program_is_noticed(text: str, tmp_path: Path, gateway: Gateway, ledger: Path) -> None:
    stage = make_stage(tmp_path / "repository", "README.md", ledger)
    with pytest.raises(AssertionError, match=r"^page\.md:7: "):
        check_program(Block("page.md", 7, "python", text), stage, gateway)
