"""The command `openclaw-rl`: it lists, runs and corrects the names of the programs."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from lab.testkit.ledger_records import judged_sample
from openclaw.__main__ import COMMANDS, OF_INSPECT, main, module_of
from openclaw.ledger.store import Ledger
from openclaw.runtime.where import own_command


def run(*words: str, repository: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "openclaw", *words]
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"], []])
def test_the_list_of_commands(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == (0 if words else 2)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "usage: openclaw-rl COMMAND ..."
    assert [line.split()[0] for line in lines if line.startswith("  ")] == list(COMMANDS)


def test_the_list_loads_no_other_program(repository: Path) -> None:
    code = (
        "import sys; before = set(sys.modules); from openclaw.__main__ import main; main(['--help']);"
        "print({name for name in sys.modules if name.split('.')[0] not in sys.stdlib_module_names} - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] in (
        "{'openclaw', 'openclaw.__main__'}",
        "{'openclaw.__main__', 'openclaw'}",
    )


@pytest.mark.parametrize(
    ("name", "advice"),
    [("cht", "type: openclaw-rl chat"), ("insepct", "type: openclaw-rl inspect"), ("xyz", "use one of chat, inspect,")],
)
def test_a_misspelled_command(name: str, advice: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"openclaw-rl: no command '{name}'; {advice}")
    assert said.err.count("\n") == 1


def test_every_command_is_a_program(repository: Path) -> None:
    for name in COMMANDS.keys() - OF_INSPECT:
        module = module_of(name)
        spec = importlib.util.find_spec(module)
        assert spec is not None
        assert not spec.submodule_search_locations or importlib.util.find_spec(f"{module}.__main__")
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"openclaw-rl": "openclaw.__main__:main"}


def test_a_command_gets_its_words_and_keeps_its_exit_status(repository: Path) -> None:
    helped = run("chat", "--help", repository=repository)
    assert (helped.returncode, helped.stderr) == (0, "")
    assert helped.stdout.startswith("usage: openclaw-rl chat ")
    missing = run("inspect", "/no/such/run", repository=repository)
    assert (missing.returncode, missing.stdout) == (2, "")
    assert missing.stderr.startswith("no ledger at /no/such/run")


def test_export_and_forget_are_those_of_inspect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["openclaw-rl"])

    def here(*words: str) -> tuple[object, str]:
        """Run a command in this process; a process of its own imports for two seconds."""
        try:
            status: object = main(words)
        except SystemExit as end:
            status = end.code
        return status, capsys.readouterr().out

    ledger = Ledger(tmp_path / "ledger.sqlite")
    judged_sample(ledger, "turn", session_id="mine")
    ledger.close()
    out = tmp_path / "out.jsonl"
    assert here("export", str(tmp_path), str(out)) == (0, f"wrote 1 session to {out}\n")
    assert "What is 2 + 3?" in out.read_text()
    status, said = here("forget", str(tmp_path), "mine")
    assert (status, said.splitlines()[0]) == (0, "deleted 1 turn and 1 sample of 'mine'")
    assert Ledger(tmp_path / "ledger.sqlite").views.session_ids() == []
    status, said = here("forget", "--help")
    assert (status, said.split("\n")[0]) == (
        0,
        "usage: openclaw-rl inspect RUN forget [-h] [--person NAME] [SESSION]",
    )
    assert here("forget")[0] == 2


@pytest.mark.parametrize("module", ["openclaw", "openclaw.launch", "openclaw.report"])
def test_an_interpreter_outside_the_environment_gets_one_line(module: str, repository: Path) -> None:
    command = [sys.executable, "-S", "-m", module, "--help"]  # -S: no packages, no import path of the environment
    done = subprocess.run(command, cwd=repository, env={}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "is not the environment of this project; " in done.stderr
    assert done.stderr.endswith(", and repeat the command\n")


def test_packages_without_the_project_get_one_line(repository: Path, tmp_path: Path) -> None:
    for name in ("httpx", "yaml"):
        (tmp_path / f"{name}.py").touch()
    command = [sys.executable, "-S", "-m", "openclaw.report", "--help"]
    done = subprocess.run(
        command, cwd=repository, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith(f" lacks the project itself; type: pip install -e {repository}/slime\n")


def test_the_shown_command_is_one_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    assert own_command("report", "runs/a") == "bin/python -m openclaw report runs/a", "pip installed only the packages"
    (tmp_path / "bin" / "openclaw-rl").touch()
    assert own_command("report", "runs/a") == "bin/openclaw-rl report runs/a"
