"""Reward models as guides write them: how they are built, what their methods get, and that a slow one blocks nobody."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from slime.args import Arguments
from slime.arguments.plugin_forms import FormError
from slime.arguments.plugins import name_of_file
from slime.contract.__main__ import main
from slime.rollout.reward_plugin import load_reward_function
from slime.utils.misc import load_function
from slime.utils.types import Sample

FACTORY = """
class Grader:
    def __init__(self, folder):
        self.folder = folder

    def score(self, prompt: str, response: str, next_state: str) -> float:
        return len(f"{self.folder}{prompt}{response}") + ("thanks" in next_state)

def get_reward_model(config):
    assert config.get("no_such_thing", 3) == 3 and config.reward_key is None
    return Grader(config["prm_model_path"])
"""
CHECKPOINT = """
import torch

class CustomRewardModel:
    def __init__(self, checkpoint_path: str):
        self.folder = checkpoint_path

    def compute_reward(self, prompt: str, response: str, next_feedback: str) -> float:
        return torch.tensor(len(self.folder + prompt + response + next_feedback))

    def batch_compute_rewards(self, batch_data):
        return torch.tensor([
            float(self.compute_reward(item["prompt"], item["response"], item["feedback"])) for item in batch_data
        ])
"""
ARGS = Arguments(prm_model_path="rm", hf_checkpoint="policy")
ONE = Sample(prompt="abc", response="de", metadata={"next_state": "thanks"})
TWO = Sample(prompt="a", response="b")


def written(folder: Path, text: str) -> str:
    file = folder / "custom_rm.py"
    file.write_text(text)
    return name_of_file("custom_rm_path", str(file))


@pytest.mark.parametrize("text", [FACTORY, CHECKPOINT])
async def test_a_model_of_the_guides_scores_one_several_and_none(tmp_path: Path, text: str) -> None:
    score = load_reward_function(written(tmp_path, text), ARGS)
    thanked = len("thanks") if text == CHECKPOINT else 1
    assert await score(ARGS, ONE) == 7 + thanked
    assert await score(ARGS, [ONE, TWO], evaluation=True) == [7 + thanked, 4]
    assert await score(ARGS, []) == []


@pytest.mark.parametrize("text", [FACTORY, CHECKPOINT])
def test_the_policy_is_no_reward_model_by_default(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--custom-rm-path", written(tmp_path, text)]
    assert main(words) == 1
    assert "add --prm-model-path PATH" in capsys.readouterr().out
    assert main([*words, "--prm-model-path", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"accepted {words[0]} {words[1]}: 7 clauses\n"


SLOW = """
import threading

ready, entered = threading.Event(), threading.Event()
inside = threading.Lock()
threads = set()

def wait():
    assert inside.acquire(blocking=False), "two calls at once"
    entered.set()
    threads.add(threading.current_thread())
    assert ready.wait(20), "nobody else could run"
    inside.release()

class Slow:
    def __init__(self):
        wait()

    def score(self, prompt, response, next_state):
        wait()
        return 1.0
"""


async def test_a_slow_model_blocks_no_event_loop_and_is_asked_once_at_a_time(tmp_path: Path) -> None:
    path = written(tmp_path, SLOW)
    score = load_reward_function(path, ARGS)
    events: Any = {name: load_function(path.replace("Slow", name)) for name in ("ready", "entered", "threads")}
    rewards = asyncio.ensure_future(score(ARGS, [ONE, TWO, ONE]))
    while not events["entered"].is_set():
        await asyncio.sleep(0)  # the loop runs while the model is built
    events["ready"].set()
    assert await rewards == [1.0, 1.0, 1.0]
    assert len(events["threads"]) == 1
    assert threading.current_thread() not in events["threads"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("class R:\n    def __init__(self, a, b): ...\n    def score(self, p): ...", "needs a, b to be built"),
        ("def get_reward_model(config, b): ...", "needs config, b to be built"),
        ("class R:\n    def score(self, a, b, c, d): return 1.0", "score requires a, b, c, d, but it gets prompt, "),
        ("class R:\n    def batch_compute_rewards(self, a, b, c, d): ...", "but it gets a list of dicts"),
        ("def get_reward_model(config):\n    return 3", "its int has none of the methods score"),
        (
            "class R:\n    def score(self, p): return 1.0\n    def batch_compute_rewards(self, a, b, c, d): ...",
            "requires a",
        ),
    ],
)
async def test_a_wrong_signature_has_its_clause(tmp_path: Path, text: str, says: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(FormError, match=f"^clause reward-1: .*{says}"):
        await load_reward_function(path, ARGS)(ARGS, ONE)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("class R:\n    def score(self, a, b, c, d): return 1.0", "clause reward-1: "),
        (
            "def get_reward_model(config):\n    return config['absent']",
            "no argument 'absent'; write config.get('absent', DEFAULT)",
        ),
        (
            "import no_such_module_here\ndef reward_func(args, sample): ...",
            "ModuleNotFoundError: No module named 'no_such",
        ),
        ("class R:\n    def score(self, p): return 'good'", "clause reward-4"),
    ],
)
def test_the_checker_answers_with_a_line_and_no_traceback(
    tmp_path: Path, text: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--custom-rm-path", written(tmp_path, text)]) == 1
    text = capsys.readouterr().out
    assert says in text
    assert "Traceback" not in text


def test_a_file_with_several_models_asks_for_a_name(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"say which name to use: .*custom_rm.py:A or .*custom_rm.py:B"):
        written(tmp_path, "class A:\n    def score(self): ...\nclass B:\n    def compute_reward(self): ...\n")
