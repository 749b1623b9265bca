"""Episodes as guides write them: every reply is a sample with the engine's own ids, and the episode's rewards."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from groundwork.exceptions import ConfigError
from slime.arguments.plugin_forms import FormError
from slime.arguments.plugins import name_of_file, wrong_signatures
from slime.contract.__main__ import main
from slime.contract.clauses import settled
from slime.contract.engine import logprob_of
from slime.contract.surroundings import Surroundings, surroundings
from slime.rollout.generation import GenerateState, generate_and_rm, load_generate_function
from slime.utils.types import Sample

OPTION = "custom_generate_function_path"
TERMINAL = """
import subprocess

STEPS = 3

async def terminal_rollout(agent_model, task_description: str):
    trajectory, state = [], ""
    for step in range(STEPS):
        command = await agent_model.generate(f"Task: {task_description}\\nState: {state}\\nCommand:")
        result = subprocess.run(["echo", command], capture_output=True, text=True, timeout=10)
        trajectory.append({"command": command, "output": result.stdout, "reward": float(step)})
        state = result.stdout
    return trajectory
"""


def written(folder: Path, text: str) -> str:
    file = folder / "terminal_rollout.py"
    file.write_text(text)
    return name_of_file(OPTION, str(file))


def play(around: Surroundings, path: str, **changes: Any) -> list[Sample]:
    setattr(around.args, OPTION, path)
    sample = around.sample(index=5, **changes)
    return settled(generate_and_rm(around.args, sample, dict(GenerateState(around.args).sampling_params)))


def test_an_episode_keeps_ids_and_log_probabilities_of_the_engine(tmp_path: Path) -> None:
    with surroundings() as around:
        replies = play(around, written(tmp_path, TERMINAL), metadata={"row": 1})
        tokenizer = GenerateState(around.args).tokenizer
    assert [reply.reward for reply in replies] == [0.0, 1.0, 2.0]
    assert len(around.engine.requests) == 3
    for request, reply in zip(around.engine.requests, replies, strict=True):
        prompt, ids = request["input_ids"], reply.tokens[-reply.response_length :]
        assert reply.tokens == [*prompt, *ids]
        assert reply.rollout_log_probs == [logprob_of(place, token) for place, token in enumerate(ids)]
        assert tokenizer.decode(prompt).startswith("<|im_start|>user\nTask: say something\nState: ")
        assert (reply.group_index, reply.index, reply.metadata["row"], reply.label) == (0, 5, 1, "7")
        assert reply.status in (Sample.Status.COMPLETED, Sample.Status.TRUNCATED)
    assert replies[0].response.strip() in str(replies[1].prompt)


def test_an_aborted_episode_is_played_again(tmp_path: Path) -> None:
    with surroundings() as around:
        path = written(tmp_path, TERMINAL)
        around.engine.aborting = True
        settled(_abort(around))
        sample = around.sample()
        parameters = dict(GenerateState(around.args).sampling_params)
        [aborted] = settled(load_generate_function(path)(around.args, sample, parameters))
        assert (aborted.status, aborted.tokens, aborted.reward) == (Sample.Status.ABORTED, [], None)
        around.engine.aborting = GenerateState(around.args).aborted = False
        assert len(settled(load_generate_function(path)(around.args, aborted, parameters))) == 3


async def _abort(around: Surroundings) -> None:
    GenerateState(around.args).aborted = True


BLOCKING = """
import threading

together = threading.Barrier(2)

async def play(agent_model, task):
    together.wait(20)  # blocks its thread until the other episode is here too
    await agent_model.generate(task, max_new_tokens=2)
    return [{"reward": 1}]
"""


def test_an_episode_may_block_its_thread(tmp_path: Path) -> None:
    async def both() -> list[Any]:
        function = load_generate_function(path)
        parameters = dict(GenerateState(around.args).sampling_params)
        return await asyncio.gather(*(function(around.args, around.sample(), parameters) for _ in range(2)))

    path = written(tmp_path, BLOCKING)
    with surroundings() as around:
        for [reply] in settled(both()):
            assert reply.reward == 1.0
    assert [request["sampling_params"]["max_new_tokens"] for request in around.engine.requests] == [2, 2]


ASKS = "await agent_model.generate('a')"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"async def play(agent_model, task):\n    {ASKS}\n    return [1]", "must return a list with a dict per reply"),
        (f"async def play(agent_model, task):\n    {ASKS}\n    return []", "returned 0 steps for 1 replies"),
        ("async def play(agent_model, task):\n    return []", "returned 0 steps for 0 replies"),
        (
            f"async def play(agent_model, task):\n    {ASKS}\n    return [{{'command': 'a'}}]",
            "step 1 has the reward None",
        ),
    ],
)
def test_a_trajectory_that_does_not_fit_its_replies_has_its_clause(tmp_path: Path, text: str, says: str) -> None:
    path = written(tmp_path, text)
    with surroundings() as around, pytest.raises(FormError, match=f"^clause generate-4: .*{says}"):
        play(around, path)


def test_a_rendered_task_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, TERMINAL)
    with (
        surroundings(["--apply-chat-template"]) as around,
        pytest.raises(ConfigError, match="remove --apply-chat-template"),
    ):
        play(around, path)


@pytest.mark.parametrize(
    ("text", "clause", "says"),
    [
        ("async def play(agent_model, task, judge): ...", "generate-1", "nothing is known for its parameter judge"),
        ("def play(agent_model, task): ...", "generate-2", "write async def, and await agent_model.generate"),
        (
            "async def collect(prompt, student_model, teacher_augmentation_fn, max_turns=10): ...",
            "generate-1",
            "a teacher is trained on by its log probabilities",
        ),
    ],
)
def test_a_wrong_signature_has_its_clause(
    tmp_path: Path, text: str, clause: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, text)
    assert main(["--custom-generate-function-path", path]) == 1
    shown = capsys.readouterr().out
    assert f"clause {clause}: " in shown
    assert says in shown
    with surroundings() as around:
        setattr(around.args, OPTION, path)
        assert bool(wrong_signatures(around.args)) == (clause == "generate-1")


def test_an_episode_is_no_rollout_function_and_its_file_says_which_flag_takes_it(tmp_path: Path) -> None:
    written(tmp_path, TERMINAL)
    with pytest.raises(ConfigError, match=r"terminal_rollout plays one episode: use --custom-generate-function-path"):
        name_of_file("rollout_function_path", str(tmp_path / "terminal_rollout.py"))
