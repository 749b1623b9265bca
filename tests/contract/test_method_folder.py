"""A method owns itself: a folder made here, outside the repository, needs no edit of `openclaw` or `slime`.

It has a variable, a default per profile, launch flags, a run script, and a teacher that reads the next message itself.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from groundwork.exceptions import ConfigError
from lab.testkit.ledger_records import USER_NEXT, make_turn
from lab.testkit.tiny_random import build_tokenizer
from openclaw.config.runtime import RuntimeConfig
from openclaw.judge.client import JudgeClient, JudgeSampling
from openclaw.judge.hygiene import Limits
from openclaw.judge.teacher import TeacherScorer
from openclaw.judge.voting import JudgeMetrics
from openclaw.judge.worker import JudgeWorker, WorkerSettings
from openclaw.launch.methods import Undeclared, find_method, methods_of
from openclaw.launch.plan import Recipe
from openclaw.launch.profiles import GPU8, TINY_CPU
from openclaw.launch.resolve import make_plan
from openclaw.launch.task import task_folders
from openclaw.ledger.store import Ledger
from openclaw.method import load_method
from slime.arguments.parser import build_parser
from slime.utils.forwarded_environment import forwarded
from slime.utils.misc import load_function
from tests.helpers.fake_engine import FakeEngine
from tests.helpers.launch_plans import becomes
from tests.page_commands.in_process import run_call

METHOD = """
from dataclasses import dataclass

from openclaw.config.method_config import MethodConfig, Reason, variable
from openclaw.method import JudgePlan, SampleDecision
from openclaw.training.samples import make_sample


@dataclass(frozen=True, kw_only=True)
class Config(MethodConfig):
    name = "foresight"
    rollout_function = "openclaw_foresight_rollout.generate_rollout_foresight"
    reasons = {"no_foresight": Reason("Nothing followed in which a teacher could read how the reply turned out.")}
    defaults = {"PRM_M": 2, "BATCH_SIZE": 8}
    profile_defaults = {"tiny_cpu": {"FORESIGHT_WEIGHT": 0.25, "LEARNING_RATE": 3e-4}}

    weight: float = variable("FORESIGHT_WEIGHT", 0.5, "weight of what comes next", minimum=0.0)
    reads: str = variable("FORESIGHT_READS", "all", "which next messages the teacher reads", choices=("all", "last"))
    bound: int | None = variable("FORESIGHT_BOUND", None, "most characters that it reads", minimum=1)

    def launch_flags(self):
        return ("--advantage-estimator", "grpo", "--use-opd", "--opd-kl-coef", str(self.weight))


class Foresight:
    name = "openclaw-foresight"

    def __init__(self, config, own):
        self.own = own

    def judges(self):
        return JudgePlan(needs_teacher=True, teacher_context=self.next_state)

    def next_state(self, turn, verdict):
        if "+" not in turn.messages[-1]["content"]:
            return None
        following = turn.next_state if self.own.reads == "all" else turn.next_state[-1:]
        return [*turn.messages, *following]

    def samples(self, turn, verdict):
        if verdict.teacher_log_probs is None:
            return SampleDecision(reason="no_foresight")
        sample = make_sample(turn, 0.0, score=None, teacher_log_probs=verdict.teacher_log_probs)
        return SampleDecision([sample])

    def session_samples(self, judged):
        return []
"""
ROLLOUT = """
from openclaw.training.rollout import LiveRollout

generate_rollout_foresight = LiveRollout("openclaw_foresight_method.Foresight")
"""
SCRIPT = """#!/usr/bin/env bash
source "{root}/scripts/launch.sh"
launch --model qwen3-4B "$@"
"""


@pytest.fixture
def folder(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A method folder beside the repository."""
    folder = tmp_path / "openclaw-foresight"
    folder.mkdir()
    (folder / "openclaw_foresight_method.py").write_text(METHOD)
    (folder / "openclaw_foresight_rollout.py").write_text(ROLLOUT)
    (folder / "run_qwen3_4b_openclaw_foresight.sh").write_text(SCRIPT.format(root=repository))
    monkeypatch.delitem(sys.modules, "openclaw_foresight_method", raising=False)
    return folder


def script(folder: Path, *words: str, **environment: str) -> tuple[int, str]:
    """Return the exit code of the folder's script, and what it printed; this process forgets its modules."""
    started = folder / "run_qwen3_4b_openclaw_foresight.sh"
    return run_call(becomes(started, folder.parent, *words, **{"GPU_MEMORY_GB": "80"} | environment), folder)


def test_its_script_shows_its_lines(folder: Path, repository: Path) -> None:
    code, shown = script(folder, "--dry-run", "--verbose", FORESIGHT_WEIGHT="0.75")
    assert code == 0, shown
    lines = shown.splitlines()
    for line in (
        "    --rollout-function-path openclaw_foresight_rollout.generate_rollout_foresight",
        "    --opd-kl-coef 0.75",
        "    --rollout-batch-size 8",
        "    --prm-m 2",
    ):
        assert line in lines
    rows = {line.split()[0]: line.split()[1:] for line in lines if line.strip()}
    assert rows["FORESIGHT_WEIGHT"] == ["0.75", "env"]
    assert rows["FORESIGHT_READS"] == ["all", "default"]
    assert rows["FORESIGHT_BOUND"] == ["default"]
    assert rows["PRM_M"] == ["2", "method"]
    assert f"PYTHONPATH={folder}:{repository}:" in shown


def test_its_variables_are_validated_and_documented(folder: Path) -> None:
    code, refused = script(folder, "--dry-run", FORESIGHT_WEIGHT="-1")
    assert code == 2
    assert "FORESIGHT_WEIGHT=-1.0 is too small; use 0 or more" in refused
    assert (
        "FORESIGHT_READS='some' is not a choice; use one of all, last"
        in script(folder, "--dry-run", FORESIGHT_READS="some")[1]
    )
    shown = " ".join(script(folder, "--help")[1].split())
    assert "FORESIGHT_WEIGHT (default: 0.5): weight of what comes next." in shown


def test_its_defaults_depend_on_the_profile(folder: Path) -> None:
    tiny = make_plan(Recipe(str(folder), None, TINY_CPU), [], {})
    assert (tiny.args.opd_kl_coef, tiny.args.lr, tiny.args.rollout_batch_size) == (0.25, 3e-4, 8)
    assert (tiny.args.prm_m, tiny.runtime_sources["FORESIGHT_WEIGHT"]) == (1, "profile")
    assert tiny.environment["FORESIGHT_WEIGHT"] == "0.25"
    assert forwarded(tiny.environment)["FORESIGHT_WEIGHT"] == "0.25", "ranks on other machines read it too"
    large = make_plan(Recipe(str(folder), None, GPU8), [], {"MAJORITY_VOTE_N": "5"})
    assert (large.args.opd_kl_coef, large.args.lr, large.args.prm_m) == (0.5, 1e-5, 5)
    assert make_plan(Recipe(str(folder), None, TINY_CPU), [], {"FORESIGHT_WEIGHT": "2"}).args.opd_kl_coef == 2.0


@pytest.mark.parametrize(("reads", "read"), [("all", [*USER_NEXT, *USER_NEXT]), ("last", USER_NEXT)])
async def test_the_judge_builds_what_its_teacher_reads(
    folder: Path, reads: str, read: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(folder))
    load_function.cache_clear()  # as in a new runtime process
    environment = {"FORESIGHT_READS": reads}
    method = load_method("openclaw_foresight_method.Foresight", RuntimeConfig(), environment)
    ledger, engine, rendered = (
        Ledger(tmp_path / "ledger.sqlite"),
        FakeEngine(score=lambda ids: [-1.0 * len(ids)] * len(ids)),
        [],
    )

    def render(messages: Any, *_: Any) -> list[int]:
        if messages == make_turn().messages:
            return make_turn().prompt_ids
        rendered.append(list(messages))
        return [1] * (10 + len(messages))

    teacher = TeacherScorer(policy=engine, teacher=engine, render=render, concurrency=1)
    judge = JudgeClient(engine, build_tokenizer(), "brief", JudgeSampling())
    worker = JudgeWorker(
        *(ledger, method, judge, teacher, Limits(0.6, 2, 100), JudgeMetrics(CollectorRegistry())),
        WorkerSettings(poll_seconds=0.02),
    )
    plain = make_turn("turn-1", session_id="other", messages=[{"role": "user", "content": "Hello."}])
    for turn in (make_turn(), plain):
        ledger.turns.record(turn)
        ledger.turns.record_next_state(turn.id, [*USER_NEXT, *USER_NEXT], 102.0)
    stop = asyncio.Event()
    task = asyncio.create_task(worker.run(stop))
    async with asyncio.timeout(10.0):
        while ledger.views.counts()["turns"].get("judged", 0) < 2:
            await asyncio.sleep(0.005)
    stop.set()
    await task
    assert rendered == [[*make_turn().messages, *read]]
    [sample] = ledger.samples.claim(0, 5)
    assert len(sample.teacher_log_probs or []) == 3
    assert ledger.judging.judged("other")[0].turn.reason == "no_foresight"
    assert all(payload.get("return_logprob") for payload in engine.payloads), "no judge was asked"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('variable("FORESIGHT_WEIGHT"', 'variable("PRM_M"', "PRM_M is already declared"),
        ('{"PRM_M": 2,', '{"PRM_N": 2,', "default for the unknown variable PRM_N"),
        ('{"PRM_M": 2,', '{"PRM_M": 0,', "PRM_M=0 is too small"),
        ('{"tiny_cpu"', '{"tiny"', "unknown profile tiny; use fireworks, gpu1_12gb"),
        ('    name = "foresight"\n', "", "Config has no name"),
        (
            '    name = "foresight"\n',
            '    name = "foresight"\n    keeps_topk = False\n',
            "Config sets keeps_topk, which",
        ),
        (
            "from dataclasses",
            "import nothing_there\nfrom dataclasses",
            "ModuleNotFoundError: No module named 'nothing_there'",
        ),
    ],
)
def test_a_declaration_that_cannot_be_meant_is_refused(folder: Path, old: str, new: str, says: str) -> None:
    file = folder / "openclaw_foresight_method.py"
    file.write_text(METHOD.replace(old, new))
    with pytest.raises(ConfigError, match=says):
        find_method(str(folder))


def test_a_variant_has_the_variables_of_its_method(folder: Path) -> None:
    file = folder / "openclaw_foresight_method.py"
    variant = "\n\n@dataclass(frozen=True, kw_only=True)\nclass Near(Config):\n    name = 'near'\n"
    file.write_text(METHOD + variant)
    find_method(str(folder))
    file.write_text(METHOD + variant + "    more: int = variable('FORESIGHT_MORE', 1, 'more')\n")
    sys.modules.pop(file.stem)
    with pytest.raises(ConfigError, match="Near has other variables than Config"):
        find_method(str(folder))


def test_a_folder_that_declares_nothing_brings_its_flags(folder: Path) -> None:
    (folder / "openclaw_foresight_method.py").write_text("class Config:\n    pass\n")
    found = find_method(str(folder))
    assert (found.config, found.declared, found.folder) == (Undeclared, False, folder)


PROGRAM = "openclaw-rl"
"""A folder that has the name of the command."""


def guests(repository: Path) -> set[str]:
    """Return what the folders of methods and tasks are called, their methods' names, and their variables."""
    folders = [*{found.folder for found in methods_of()}, *task_folders()]
    names = {f'"{found.config.name}"' for found in methods_of()} - {'"personal"'}  # also a mode of redaction
    variables = {name for found in methods_of() for each in found.config.variables() for name in each.names}
    return {folder.name for folder in folders} - {PROGRAM} | names | variables


@pytest.mark.parametrize("room", ["openclaw", "slime/slime", "slime/groundwork", "agentrl"])
def test_no_room_names_a_folder_of_a_method_or_task(room: str, repository: Path) -> None:
    named = {name: re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])") for name in guests(repository)}
    found = set()
    for path in (repository / room).rglob("*.py"):
        text = path.read_text()
        found |= {
            f"{path.relative_to(repository)}: {name}"
            for name, whole in named.items()
            if name in text and whole.search(text)
        }
    assert sorted(found) == []


def test_the_core_has_no_flag_of_a_folder() -> None:
    """Flags that a folder declares are known where its plugin is named, and nowhere else."""
    of_core = set(build_parser()._option_string_actions)
    for module in ("gui_flags",):
        declared = argparse.ArgumentParser(add_help=False)
        importlib.import_module(module).add_custom_arguments(declared)
        assert of_core.isdisjoint(declared._option_string_actions)
