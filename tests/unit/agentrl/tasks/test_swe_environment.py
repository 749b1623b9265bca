"""The environment of software engineering tasks: its format, its limits, what it keeps to itself, and where repositories come from."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import tarfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.environment import Task
from agentrl.exceptions import InfraError, InvalidError
from agentrl.processes import Processes, ProcessLedger
from agentrl.rollout.actions import opening
from agentrl.sandbox.interface import ExecResult, Limits, SandboxSpec
from agentrl.tasks.harbor import File
from agentrl.tasks.swe import prompts
from agentrl.tasks.swe.__main__ import main, problem_of
from agentrl.tasks.swe.diffs import diff_of
from agentrl.tasks.swe.environment import IMAGE_ENV, SweEnvironment
from agentrl.tasks.swe.generate import draft_of, files_of, generate
from agentrl.tasks.swe.instance import Grading, Instance
from agentrl.tasks.swe.repository import IN_IMAGE, from_folder, visible_tree
from agentrl.tasks.swe.source import ROW_LIMITS, InstanceSource
from agentrl.tasks.swe.tree import entries_of, tree_of_files
from groundwork.exceptions import ConfigError
from tests.helpers.plain_sandboxes import PlainProvider
from tests.helpers.swe_agents import judged, oracle

NAME = "swe/pages/train/2"
Make = Callable[..., SweEnvironment]


@pytest.fixture
async def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    """Return a function that makes an environment with variables; all are closed in the end."""
    ledger = ProcessLedger(tmp_path / "ledger.sqlite")
    made: list[SweEnvironment] = []

    def build(kind: type[SweEnvironment] = SweEnvironment, **variables: str) -> SweEnvironment:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        made.append(type("Plain", (kind,), {"provider": PlainProvider(tmp_path)})(Processes(ledger)))
        return made[-1]

    yield build
    for each in made:
        await each.close()
    ledger.close()


async def test_an_episode_in_blocks_of_bash(make: Make) -> None:
    environment = make(SWE_STEP_LIMIT="3")
    seen = await environment.reset(Task(NAME), 0)
    began = opening(seen)
    assert [message["role"] for message in began.messages] == ["system", "user"]
    assert generate(NAME).statement.strip() in began.messages[1]["content"]
    assert "You may run 3 commands" in began.messages[1]["content"]
    assert seen.data["actions"] == "code_block"
    told = (await environment.step({"code": "echo out; echo err >&2; false\n"})).observation
    assert told.text == "<returncode>1</returncode>\n<output>\nout\nerr\n</output>\nREMINDER: 2 commands left."
    with pytest.raises(InvalidError, match="the block has no command"):
        await environment.step({"code": " "})
    with pytest.raises(InvalidError, match="write one block of bash"):
        await environment.step({"tool": "other", "arguments": {}})
    ended = await environment.step({"code": oracle(NAME)})
    assert not ended.done
    ended = await environment.step({"code": prompts.SUBMIT})
    assert (ended.done, ended.truncated, ended.observation.text) == (True, False, "Submitted.")
    assert (await environment.evaluate()).score == 1.0


async def test_the_last_command_ends_the_episode_and_is_judged(make: Make) -> None:
    environment = make(SWE_STEP_LIMIT="1")
    await environment.reset(Task(NAME), 0)
    last = await environment.step({"code": f"{oracle(NAME)}; echo not alone; {prompts.SUBMIT}"})
    assert (last.done, last.truncated) == (False, True)
    assert (await environment.step({"code": "ls"})).truncated
    assert (await environment.evaluate()).score == 1.0


async def test_tool_calls_and_the_time_of_a_command(make: Make) -> None:
    environment = make(SWE_ACTIONS="tool_calls", SWE_COMMAND_SECONDS="0.3")
    seen = await environment.reset(Task(NAME), 0)
    assert [tool["function"]["name"] for tool in opening(seen).tools] == ["bash"]
    late = await environment.step({"tool": "bash", "arguments": {"command": "sleep 60", "timeout_s": 100.0}})
    assert "<returncode>-1</returncode>\n<note>It was ended after 0.3 s.</note>" in late.observation.text
    assert (await environment.step({"text": "done"})).done


def test_long_output_loses_its_middle() -> None:
    text = prompts.seen(ExecResult(0, b"a" * 9000 + b"b" * 9000, 0, False, 1.0), 5.0, 1)
    assert "8000 characters, is left out" in text
    assert len(text) < 10_300
    assert ("aaa\n[...]\nbbb" in text, text.count("<output>")) == (True, 1)


@pytest.mark.parametrize(
    ("output", "code", "submitted"),
    [
        (b"COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n", 0, True),
        (b"\nCOMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\ndiff", 0, True),
        (b"COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n", 1, False),
        (b"x COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n", 0, False),
        (b"", 0, False),
    ],
)
def test_what_a_submission_is(output: bytes, code: int, submitted: bool) -> None:
    assert prompts.is_submission(ExecResult(code, output, 0, False, 1.0)) is submitted


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def mirrored(tmp_path: Path) -> tuple[Path, str]:
    """Return a folder of instances with a mirror of a repository, and the commit before its fix."""
    draft, source = draft_of(NAME), tmp_path / "source"
    for path, text in draft.broken().items():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_text(text)
    (source / ".gitattributes").write_text("tests export-ignore\n")
    git(source, "init", "-q", ".")
    git(source, "add", "-A")
    git(source, "commit", "-qm", "before")
    commit = git(source, "rev-parse", "HEAD")
    (source / draft.path).write_text(draft.working()[draft.path])
    git(source, "commit", "-qam", "the fix")
    repos = tmp_path / "instances" / "repos"
    repos.mkdir(parents=True)
    git(tmp_path, "clone", "-q", "--mirror", str(source), str(repos / "acme__pages.git"))
    return tmp_path / "instances", commit


def write_row(folder: Path, commit: str, **changes: Any) -> None:
    row = {**generate(NAME).row(), "instance_id": "acme__pages-1", "repo": "acme/pages", "base_commit": commit}
    (folder / "swe-gym.jsonl").write_text(json.dumps(row | changes) + "\n")


@pytest.mark.parametrize("form", ["mirror", "bundle", "archive"])
async def test_a_repository_of_a_row_has_one_commit_and_no_fix(
    form: str, mirrored: tuple[Path, str], make: Make
) -> None:
    folder, commit = mirrored
    repos = folder / "repos"
    if form == "bundle":
        git(repos / "acme__pages.git", "bundle", "create", "-q", str(repos / "acme__pages.bundle"), "--all")
    if form == "archive":
        git(
            repos / "acme__pages.git", "archive", "--prefix=pages-1/", "-o", str(repos / "acme__pages-1.tar.gz"), commit
        )
    if form != "mirror":
        (repos / "acme__pages.git").rename(folder / "unused.git")
    write_row(folder, commit)
    environment = make(SWE_BENCH_PATH=str(folder))
    assert [task.id for task in environment.tasks()] == ["acme__pages-1"]
    await environment.reset(Task("acme__pages-1"), 0)
    told = (
        await environment.step({"code": "git log --all --oneline | wc -l; git cat-file --batch-all-objects --batch"})
    ).observation
    assert told.text.splitlines()[2] == "1"
    assert draft_of(NAME).mistake.right not in told.text
    assert ("test_first_page" in told.text) == (form != "archive"), "the operator's own archive lacks what it lacks"
    await environment.close()
    if form == "archive":
        return
    assert (await judged(environment, "acme__pages-1", oracle(NAME))).score == 1.0
    assert (await judged(environment, "acme__pages-1", "echo > README.md")).score == 0.0


async def test_a_row_whose_mistake_is_a_diff_hides_the_tests_that_fail(mirrored: tuple[Path, str], make: Make) -> None:
    folder, _ = mirrored
    draft = draft_of(NAME)
    commit = git(folder / "repos" / "acme__pages.git", "rev-parse", "HEAD")
    whole = {**files_of(NAME), draft.path: File(draft.working()[draft.path].encode())}
    bug = diff_of(draft.working(), draft.broken())
    shown = [name for name in generate(NAME).grading.pass_to_pass if "test_package" in name]
    changes = {"bug_patch": bug, "test_patch": "", "FAIL_TO_PASS": shown[:1], "PASS_TO_PASS": shown[1:]}
    write_row(folder, commit, **changes)
    environment = make(SWE_BENCH_PATH=str(folder))
    await environment.reset(Task("acme__pages-1"), 0)
    left = (await environment.step({"code": f"cat {draft.path}; ls tests"})).observation.text
    assert draft.mistake.wrong in left
    assert "test_package.py" not in left
    await environment.close()
    instance = InstanceSource(path=str(folder)).load("acme__pages-1")
    visible = entries_of(visible_tree(instance, tree_of_files(whole)))
    assert "tests/test_package.py" not in visible
    (folder / "repos" / "acme__pages.git").rename(folder / "gone.git")
    with pytest.raises(ConfigError, match="git clone --mirror URL"):
        from_folder(folder, "other", "acme/pages", commit)


async def test_a_test_patch_that_does_not_fit_is_no_reward(mirrored: tuple[Path, str], make: Make) -> None:
    folder, commit = mirrored
    write_row(folder, commit, test_patch=diff_of({"tests/none.py": "a\n"}, {"tests/none.py": "b\n"}))
    environment = make(SWE_BENCH_PATH=str(folder))
    with pytest.raises(InfraError, match="the test patch does not fit"):
        await judged(environment, "acme__pages-1", oracle(NAME))


def test_an_image_is_used_where_containers_are_and_its_repository_is_hidden(make: Make, tmp_path: Path) -> None:
    environment = make()
    grading = Grading("pytest", "", "", ("t.py::a",), (), "diff --git a/x b/x\n")

    class One(InstanceSource):
        def limits(self, name: str) -> Limits:
            return ROW_LIMITS

        def load(self, name: str) -> Instance:
            return Instance(name, "a/b", "c", "x", grading, "img")

    environment._source = One()
    environment._task = environment.load(Task("x"))
    assert environment.spec().image == "img", "a provider that is not bubblewrap"
    spec: SandboxSpec = environment.spec()
    assert ([mount.inside for mount in spec.mounts], spec.env) == ([IN_IMAGE], IMAGE_ENV)
    assert [path.name for path in spec.mounts[0].host.iterdir()] == ["README"]


def test_an_archive_that_is_too_large_or_broken_says_so(tmp_path: Path) -> None:
    (tmp_path / "repos").mkdir()
    (tmp_path / "repos" / "x-1.tar.gz").write_bytes(b"no archive")
    with pytest.raises(ConfigError, match="cannot be read"):
        from_folder(tmp_path, "x-1", "a/b", "c")
    with tarfile.open(tmp_path / "repos" / "x-2.tar", "w") as archive:
        big = tarfile.TarInfo("a/big")
        big.size = 61 << 20
        archive.addfile(big, open("/dev/zero", "rb"))  # noqa: SIM115
    (tmp_path / "repos" / "x-3.tar.gz").write_bytes(gzip.compress(bytes(61 << 20), 1))
    for name in ("x-2", "x-3"):
        with pytest.raises(ConfigError, match="more than 62914560 bytes at this commit; use an image"):
            from_folder(tmp_path, name, "a/b", "c")


def test_the_source_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="SWE_BENCHMARK=swe-gym needs SWE_BENCH_PATH"):
        InstanceSource(benchmark="swe-gym").ids()
    with pytest.raises(ConfigError, match=r"python -m agentrl\.tasks\.swe import swe-gym"):
        InstanceSource(path=str(tmp_path)).ids()
    (tmp_path / "swe-gym.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match="instance_id"):
        InstanceSource(path=str(tmp_path)).ids()
    assert len(InstanceSource().ids("train")) == 300
    for benchmark in ("local", "easy"):
        with pytest.raises(
            ConfigError, match=f"SWE_BENCHMARK={benchmark} has generated instances, and SWE_BENCH_PATH=x"
        ):
            InstanceSource(benchmark=benchmark, path="x")
    with pytest.raises(ConfigError, match="swe-bench-verified is for evaluation only"):
        InstanceSource(benchmark="swe-bench-verified", path=str(tmp_path)).ids("train")
    with pytest.raises(ConfigError, match=r"r2e-gym cannot be imported: .*SWE_BENCHMARK=harbor"):
        InstanceSource.from_env({"SWE_BENCHMARK": "r2e-gym", "SWE_BENCH_PATH": "x"})


async def test_a_task_folder_is_played_as_any_other(
    tmp_path: Path, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(tmp_path / "tasks"), NAME]) == 0
    (folder,) = (tmp_path / "tasks").iterdir()
    assert capsys.readouterr().out.strip() == str(folder)
    with (folder / "task.toml").open("a") as file:
        file.write('[environment.env]\nCOLOUR = "blue"\n')
    environment = make(SWE_BENCHMARK="harbor", SWE_BENCH_PATH=str(tmp_path / "tasks"))
    (task,) = environment.tasks()
    assert (task.id, task.weight.memory_mib) == ("swe-pages-train-2", 320)
    instance = InstanceSource(benchmark="harbor", path=str(tmp_path / "tasks")).load(task.id)
    assert environment.provider is not None
    source = InstanceSource(benchmark="harbor", path=str(tmp_path / "tasks"))
    assert await problem_of(source, instance, environment.provider, environment.processes) == ""
    blue = f'test "$COLOUR" = blue && {{ {oracle(NAME)}\n}}'
    assert (await judged(environment, task.id, blue)).score == 1.0
    assert draft_of(NAME).mistake.right in environment.patch
    assert (await judged(environment, task.id, "echo > tests/test_package.py; echo > README.md")).score == 0.0


def test_an_exported_folder_grades_by_itself(tmp_path: Path) -> None:
    assert main(["export", str(tmp_path), NAME]) == 0
    folder, reward = tmp_path / "swe-pages-train-2", tmp_path / "reward"
    variables = {"TASK_HOME": str(folder / "environment"), "REWARD_FILE": str(reward), "PATH": os.environ["PATH"]}
    for solved in (False, True):
        if solved:
            subprocess.run(["bash", str(folder / "solution/solve.sh")], env=variables, check=True)
        subprocess.run(["bash", str(folder / "tests/test.sh")], env=variables, check=True, capture_output=True)
        assert reward.read_text() == f"{int(solved)}\n"
