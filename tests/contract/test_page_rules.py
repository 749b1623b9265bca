"""Every command of every page has a rule, every rule a command; what stands in a page is read as a shell reads it."""

from __future__ import annotations

import subprocess

import pytest

from lab.testkit.served_gateway import ADDRESSES, REPLY_ID
from tests.page_commands import __main__ as command_line
from tests.page_commands.__main__ import main
from tests.page_commands.blocks import (
    Block,
    Command,
    all_commands,
    blocks_of,
    commands_of_block,
    commands_of_text,
    pages,
    read_page,
)
from tests.page_commands.check import REPLACED
from tests.page_commands.rules import RULES, Kind, NoRuleError, rule_of
from tests.page_commands.stage import LEDGERS

COMMANDS = all_commands()


def texts(text: str, language: str = "bash") -> list[str]:
    return [command.text for command in commands_of_block(Block("page.md", 1, language, text))]


def test_every_command_has_a_rule_and_every_rule_a_command() -> None:
    used = [rule_of(command) for command in COMMANDS]
    unused = [rule.pattern for rule in RULES if rule not in used]
    assert not unused, (
        f"no page has a command for these any more; delete them from tests/page_commands/rules.py: {unused}"
    )


def test_a_command_that_no_rule_knows_is_named() -> None:
    with pytest.raises(
        NoRuleError, match=r"^page\.md:7: no rule says how to test `terraform apply`; add a row to RULES"
    ):
        rule_of(Command("page.md", 7, "terraform apply"))


def test_a_program_that_is_run_with_other_options_is_no_exception() -> None:
    for text in ("python slime/train.py --colocate --lr 1", "python -m openclaw.server --port 8000"):
        assert rule_of(Command("page.md", 1, text)).kind is Kind.DRY_RUN


def test_what_the_tests_prepare_is_used() -> None:
    shown = "\n".join(
        [*(command.text for command in COMMANDS), *(block.text for page in pages() for block in read_page(page)[0])]
    )
    for name in LEDGERS:
        assert name in shown or name.removesuffix("/ledger.sqlite") in shown, f"no command reads {name}"
    for text in (*ADDRESSES, REPLY_ID):
        assert text in shown, f"no command has {text}"
    for pattern, _ in REPLACED:
        assert any(pattern.search(command.text) for command in COMMANDS), f"no command has {pattern.pattern}"


def test_bash_reads_every_command() -> None:
    script = "\n".join(command.text for command in COMMANDS if not command.is_fragment)
    subprocess.run(["bash", "-n", "-c", script], check=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b   # why\n\n# more\nc", ["a b", "c"]),
        ("a \\\n  --b 1 \\\n  --c", ["a --b 1 --c"]),
        ("a '# no comment' \"# nor this\" b#c  # but this", ["a '# no comment' \"# nor this\" b#c"]),
        ('a "it\'s" # why', ['a "it\'s"']),
        ("a -d '{\n \"b\": 1 }'\nc", ["a -d '{\n \"b\": 1 }'", "c"]),
        ("cat > f <<'END'\nx  # kept\nEND\nc", ["cat > f <<'END'\nx  # kept\nEND", "c"]),
        ("#!/usr/bin/env bash\na\nb", ["#!/usr/bin/env bash\na\nb"]),
    ],
)
def test_the_commands_of_a_block(text: str, expected: list[str]) -> None:
    assert texts(text) == expected


def test_a_console_block_shows_output_too() -> None:
    assert texts("$ a\nits output\n$ b", "console") == ["a", "b"]


def test_the_state_of_the_shell_is_kept() -> None:
    block = Block("page.md", 5, "bash", "export A=1\nb\nsource c\nd")
    assert [(command.line, command.before) for command in commands_of_block(block)] == [
        (5, ()),
        (6, ("export A=1",)),
        (7, ("export A=1",)),
        (8, ("export A=1", "source c")),
    ]


def test_a_command_that_does_not_end_is_named() -> None:
    with pytest.raises(ValueError, match=r"page\.md:2: the command does not end in its block: b \\"):
        texts("a\nb \\")


def test_blocks_and_spans_of_a_page() -> None:
    page = "Run `python -m\nx y`, not `python` or `x`.\n\n1. list\n\n   ```bash\n   a `b`\n   ```\n\n| `bash t.sh a \\| b` |\n"
    blocks, prose = blocks_of("page.md", page)
    assert [(block.line, block.language, block.text) for block in blocks] == [(7, "bash", "a `b`")]
    found = [(command.line, command.text) for command in commands_of_text("page.md", prose)]
    assert found == [(1, "python -m x y"), (10, "bash t.sh a | b")]


def test_variables_before_a_program() -> None:
    command = Command("page.md", 1, "A=1 B=\"x y\" C='z' .venv/bin/python -m openclaw.models")
    assert command.program == "python -m openclaw.models"


def test_the_command_lists_what_it_would_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--page", "CONTRIBUTING", "--kind", "dry run"]) == 0
    assert "dry run   CONTRIBUTING.md:" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--run"])
    assert "add --page TEXT or --kind KIND" in capsys.readouterr().err


def test_the_command_runs_as_written(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    state = "export A=1"
    made = [
        Command("p.md", 1, state),
        Command("p.md", 2, "printf A=$A", (state,)),
        Command("p.md", 3, "printf '%d\\n' x"),
    ]
    monkeypatch.setattr(command_line, "all_commands", lambda: made)
    assert main(["--page", "p.md", "--run"]) == 1
    said = capfd.readouterr().out
    assert "A=1" in said
    assert [line[:16] for line in said.splitlines() if "exit code" in line][-1] == "FAILED  p.md:3: "
    assert "3 commands, 1 failed" in said


def test_a_command_that_serves_is_stopped_as_by_ctrl_c(capfd: pytest.CaptureFixture[str]) -> None:
    assert command_line.run(Command("p.md", 1, "exec sleep 600"), seconds=0.05)
    assert "ok      p.md:1: exit code -2" in capfd.readouterr().out
