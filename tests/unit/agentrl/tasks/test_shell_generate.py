"""Generated tasks: a name gives one task, names give different tasks, and an export can be read and run."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.tasks.harbor import read_task
from agentrl.tasks.names import SEEDS_PER_SPLIT
from agentrl.tasks.shell.__main__ import main
from agentrl.tasks.shell.families import EASY, FAMILIES, NEEDS
from agentrl.tasks.shell.generate import generate, task_name
from groundwork.exceptions import ConfigError

REPOSITORY = Path(__file__).parents[4]
PROGRAM = """
import hashlib, sys
from agentrl.tasks.shell.generate import generate
print(hashlib.sha256("".join(repr(generate(name)) for name in sys.argv[1:]).encode()).hexdigest())
"""


def test_a_name_gives_one_task_in_every_process() -> None:
    names = [task_name(family, "train", 7) for family in FAMILIES]
    for seed in ("1", "2"):
        command = [sys.executable, "-c", PROGRAM, *names]
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'slime'}"}
        printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        assert printed.strip() == hashlib.sha256("".join(repr(generate(name)) for name in names).encode()).hexdigest()


@pytest.mark.parametrize("family", FAMILIES)
def test_no_two_tasks_are_alike(family: str) -> None:
    tasks = [generate(task_name(family, split, number)) for split in ("train", "heldout") for number in range(60)]
    assert len({repr((task.instruction, *task.environment.items(), *task.tests.items())) for task in tasks}) == 120
    assert len({repr(task.tests["expected.json"]) for task in tasks}) > 40


def test_no_number_leads_to_the_other_split() -> None:
    generate(task_name("write_word", "train", SEEDS_PER_SPLIT - 1))
    with pytest.raises(ConfigError):
        generate(task_name("write_word", "train", SEEDS_PER_SPLIT))


@pytest.mark.parametrize("name", ["shell/none/train/1", "shell/write_word/test/1", "shell/write_word/train/01", "x"])
def test_no_such_task(name: str) -> None:
    with pytest.raises(ConfigError, match="there is no task"):
        generate(name)


def test_the_lists_name_families() -> None:
    assert {*EASY, *NEEDS} <= FAMILIES.keys()


@pytest.mark.parametrize("family", ["sum_column", "fix_function"])
def test_an_export_runs_by_itself(family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(tmp_path), "--family", family, "--split", "heldout", "--first", "3"]) == 0
    folder = Path(capsys.readouterr().out.strip())
    task = generate(task_name(family, "heldout", 3))
    assert read_task(folder) == task
    home, reward = folder / "environment", tmp_path / "reward"
    environment = {"PATH": "/usr/bin:/bin", "TASK_HOME": str(home), "REWARD_FILE": str(reward)}
    test = ["bash", str(folder / "tests/test.sh")]
    subprocess.run(test, env=environment, check=True, capture_output=True)
    assert reward.read_text() == "0\n"
    subprocess.run(["bash", str(folder / "solution/solve.sh")], cwd=home, check=True)
    subprocess.run(test, env=environment, check=True, capture_output=True)
    assert reward.read_text() == "1\n"
    assert main(["export", str(tmp_path), "--family", family, "--split", "heldout", "--first", "3"]) == 2
    assert "exists" in capsys.readouterr().err


def test_the_list_of_families(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert capsys.readouterr().out.split() == [*FAMILIES]


def test_the_command_names_tasks_of_families(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--family", "write_word", "--family", "copy_file", "--count", "2", "--first", "5"]
    assert main(["ids", *words]) == 0
    assert capsys.readouterr().out.split() == [
        *("shell/write_word/train/5", "shell/write_word/train/6"),
        *("shell/copy_file/train/5", "shell/copy_file/train/6"),
    ]
    assert main(["ids", *words, "--first", "999999"]) == 2
    assert "there is no task" in capsys.readouterr().err
