"""The flag that is made ineffective: the product reads its default, tests and other processes what was set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flag_mutations import ineffective
from tests.flag_mutations.ineffective import VARIABLE, Mutation

STARTUP = Path(ineffective.__file__).with_name("startup")
SHOW = """
import copy, pickle
from pathlib import Path
from slime.args import Arguments
from slime.arguments import parse_args
from slime.backends.sglang_utils.server_args import pass_through
from slime.arguments.placement import describe_placement
from tests.helpers.checkpoints import config_only

def parse(words):
    model = config_only(Path(FOLDER, "model"))
    base = f"--hf-checkpoint {model} --rollout-batch-size 16 --num-rollout 2 --device cpu --run-dir {FOLDER}"
    return parse_args([*base.split(), *words.split()])
"""


def said(folder: Path, mutation: Mutation, program: str) -> str:
    """Return what a process prints whose product ignores a flag."""
    root = Path(ineffective.ROOT)
    path = os.pathsep.join(map(str, (STARTUP, root, root / "slime")))
    environment = os.environ | {"PYTHONPATH": path, VARIABLE: mutation.text()}
    words = [sys.executable, "-c", f"FOLDER = {str(folder)!r}\n{SHOW}\n{program}"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("attribute", "program", "says"),
    [
        # Engine flags are taken from `vars`.
        (
            "sglang_context_length",
            "args = Arguments(sglang_context_length=5, sglang_dtype='half')\n"
            "copies = (args, copy.copy(args), pickle.loads(pickle.dumps(args)), args.changed(seed=1))\n"
            "print([pass_through(each, cpu=False) for each in copies], [each.sglang_context_length for each in copies])",
            "[{'dtype': 'half'}, {'dtype': 'half'}, {'dtype': 'half'}, {'dtype': 'half'}] [5, 5, 5, 5]",
        ),
        # A derivation fills what was left open; the placement reads what it derived, the test what was given.
        (
            "rollout_num_gpus",
            "args = parse('--rollout-num-gpus 3 --actor-num-gpus-per-node 1')\n"
            "print(len(describe_placement(args).rollout), args.rollout_num_gpus)",
            "1 3",
        ),
        # Without a derivation it is another value than a None that stops every reader.
        (
            "rollout_num_gpus",
            "args = Arguments(rollout_num_gpus=3, actor_num_gpus_per_node=1, num_nodes=1)\n"
            "print(len(describe_placement(args).rollout), args.rollout_num_gpus)",
            "1 3",
        ),
    ],
)
def test_the_product_reads_the_default_and_others_what_was_set(
    tmp_path: Path, attribute: str, program: str, says: str
) -> None:
    assert said(tmp_path, Mutation(attribute), program) == says


def test_a_check_sees_what_was_set_unless_it_is_ignored_too(tmp_path: Path) -> None:
    program = "parse('--advantage-estimator ppo --critic-num-nodes 2')\nprint('accepted')"
    refusal = "several nodes (--critic-num-nodes) are not supported yet; use --critic-num-nodes 1"
    assert refusal in said(tmp_path, Mutation("critic_num_nodes"), program)
    assert said(tmp_path, Mutation("critic_num_nodes", "checks too"), program) == "accepted"


def test_a_flag_of_plugins_is_lost_in_the_parser(tmp_path: Path) -> None:
    program = "print(parse('--prm-step-coef 3 --custom-rm-path my.score').prm_step_coef)"
    assert said(tmp_path, Mutation("prm_step_coef", "parser"), program) == "1.0"
