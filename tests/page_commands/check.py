"""Test one command as its rule says."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from lab.testkit.served_gateway import Gateway
from slime.arguments.plugins import module_spec
from tests.page_commands.blocks import ROOT, Block, Command
from tests.page_commands.curl import run_curl
from tests.page_commands.in_process import run_call
from tests.page_commands.rules import Kind, Rule
from tests.page_commands.shell import Call, ShellError, calls_of
from tests.page_commands.stage import write

REPLACED = (
    (re.compile(r"(?<=\s)\.\.\.(?=\s|$)"), "--hf-checkpoint M --disable-rollout-global-dataset --num-rollout 1 --rollout-batch-size 32 --rollout-max-response-len 512"),
    (re.compile(r"\bFOLDER\b"), "openclaw-mymethod"),
    (re.compile(r"^--"), "python slime/train_async.py --device cpu --hf-checkpoint M --num-rollout 1 --rollout-batch-size 32 --rollout-max-response-len 512 --"),
)  # fmt: skip
"""What a reader writes where a page leaves something out: the other flags of a training, a method's folder, a program."""
OWN_SCRIPT = "my-runs/run_mine.sh"
# `--flag /path` of a command that only a named folder of this repository makes true.
_PATH = re.compile(r"(?<![\w./-])(?:\./)?((?:[\w.-]+/)+[\w.-]+)")
_MODULE = re.compile(r"python3? -m ([\w.]+)")


class CommandFailed(AssertionError):
    """A page's command fails; says which one, where it stands, and what it printed."""

    def __init__(self, command: Command, code: int, printed: str) -> None:
        """Describe the failure."""
        super().__init__(f"{command.place}: `{command.text}` ends with {code}:\n{printed[-3000:]}")


def check_command(command: Command, rule: Rule, stage: Path, gateway: Gateway) -> None:
    """Test a command in ``stage``.

    Raises:
        AssertionError: it fails as the page has it.
    """
    text = completed(command)
    if rule.kind is Kind.ELSEWHERE:
        check_names(command, text)
    elif rule.kind is Kind.USAGE:
        check_usage(command)
    else:
        if rule.kind is Kind.SERVER:
            text = gateway.addressed(text)
        if command.text.startswith("#!"):
            write(stage / OWN_SCRIPT, text)
            text = f"bash {OWN_SCRIPT}"
        _run(command, f"{text} {rule.added}".strip(), rule, stage)


def check_program(block: Block, stage: Path, gateway: Gateway) -> None:
    """Run a Python block; one that reads input gets a line and the end.

    Raises:
        AssertionError: it names something that does not exist, or fails.
    """
    name = f"program_{block.line}.py"
    write(stage / name, gateway.addressed(block.text))
    command = Command(block.page, block.line, f"python {name}")
    lint = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "E9,F", str(stage / name)]
    ended = subprocess.run(lint, capture_output=True, text=True, timeout=60, check=False)
    if ended.returncode:
        raise CommandFailed(command, ended.returncode, ended.stdout + ended.stderr)
    for call in calls_of(stage, command.text):
        code, printed = run_call(call, stage)
        asked_again = "input(" in block.text and printed.rstrip().splitlines()[-1].startswith("EOFError")
        if code and not asked_again:
            raise CommandFailed(command, code, printed)


def completed(command: Command) -> str:
    """Return the command with its placeholders filled."""
    text = command.text
    for pattern, replacement in REPLACED:
        text = pattern.sub(replacement, text)
    return text


def _run(command: Command, text: str, rule: Rule, stage: Path) -> None:
    try:
        calls = calls_of(stage, "\n".join([*command.before, text]))
    except ShellError as error:
        raise CommandFailed(command, error.code, error.printed) from None
    for call in calls:
        code, printed = run_program(call, stage, only_parse=rule.kind is Kind.PARSED)
        if code:
            raise CommandFailed(command, code, printed)


def run_program(call: Call, stage: Path, *, only_parse: bool = False) -> tuple[int, str]:
    """Run a call that a shell made; return its exit code and what it printed."""
    if call.program == "curl":
        return run_curl(call)
    if call.program == "ray":
        _, program, *words = call.words[call.words.index("--") :]
        call = replace(call, program=program, words=tuple(words))
    if call.program == "openclaw-rl":
        call = replace(call, words=("-m", "openclaw", *call.words))
    return run_call(call, stage, only_parse=only_parse)


def check_usage(command: Command) -> None:
    """Compare the words of a shell program with its ``--help``."""
    script, *words = command.program.removeprefix("bash ").split()
    ended = subprocess.run(
        ["bash", script, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    # The packages that `scripts/lock.sh --upgrade` names are those of pyproject.toml.
    unknown = [word for word in words if word not in ended.stdout and word not in (ROOT / "pyproject.toml").read_text()]
    if ended.returncode or unknown:
        raise CommandFailed(command, ended.returncode, f"--help does not name {unknown}\n{ended.stdout}{ended.stderr}")


def check_names(command: Command, text: str) -> None:
    """Look for the modules and the tracked files that a command names."""
    top = {path.name for path in ROOT.iterdir()} - {"models", "runs"}
    for name in _PATH.findall(text):
        if name.split("/")[0] in top and not (ROOT / name).exists() and not name.startswith("benchmarks/baselines/"):
            raise CommandFailed(command, 127, f"the repository has no {name}")
    for name in _MODULE.findall(text):
        if name.islower() and module_spec(name) is None:
            raise CommandFailed(command, 127, f"there is no module {name}")
