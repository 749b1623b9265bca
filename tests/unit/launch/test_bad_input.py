"""Every program answers a mistyped word in one line that says what to type, before it imports anything slow.

Slow imports stand for seconds here: without them each answer takes half a second of one core.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SLOW = ["fastapi", "megatron", "openai", "peft", "ray", "sglang", "torch", "transformers"]
# Program, words, and what the line says; NAME=VALUE words before the program are variables.
CASES = """
-m openclaw.launch | --metod combine | unknown argument --metod; did you mean --method?
-m openclaw.launch | --method combin | or the path of a method folder; did you mean combine?
-m openclaw.launch | --method opnclaw-rl | did you mean openclaw-rl?
-m openclaw.launch | | add --method combine|hybrid|oel|opd|opd_topk|personal|rl|sdpo|FOLDER; --help explains it
-m openclaw.launch | --method rl --profile tiny_cpuu | --profile: 'tiny_cpuu' is not one of fireworks, gpu1_12gb,
-m openclaw.launch | --method rl --rollout-function-path rollout_binary.py | no such file; did you mean openclaw-rl/rollout_binary.py?
-m openclaw.launch | --method rl --profil tiny_cpu | unknown argument --profil; did you mean --profile?
-m openclaw.launch | --method rl --rollout-batch-siz 4 | unknown argument --rollout-batch-siz; did you mean --rollout-batch-size?
OPENCLAW_REDCT=1 -m openclaw.launch | --method rl | did you mean OPENCLAW_REDACT?
PORT=3ooo0 -m openclaw.launch | --method rl | PORT='3ooo0' is not a whole number
PORT=99999 -m openclaw.launch | --method rl | PORT=99999 is too large; use 65535 or less
HF_CKPT=instruction -m openclaw.launch | --method rl --profile tiny_cpu | instructions? Or get it with: bash scripts/build_tiny_models.sh
-m openclaw.server | --prot 3 | unknown argument --prot; did you mean --port?
-m openclaw.server | --port 3ooo0 | --port: '3ooo0' is not a port; use a number from 0 to 65535
-m openclaw.server | --model-path instruction | did you mean instructions? Or get a model with:
OPENCLAW_REDCT=1 -m openclaw.server | --model-path instructions | did you mean OPENCLAW_REDACT?
-m slime.contract | --rolout-function-path x.y | did you mean --rollout-function-path?
slime/train.py | --rollout-batch-siz 4 | train.py: unknown argument --rollout-batch-siz; did you mean --rollout-batch-size?
slime/train_async.py | --rollout_batch_siz=4 | did you mean --rollout-batch-size?
slime/train_async.py | --rollout-batch-size x4 | --rollout-batch-size: 'x4' is not a whole number
slime/train_async.py | --config instructions/x.yml | --config instructions/x.yml: no such file
slime/train_grpo.py | --lrr 1 | unknown argument --lrr; did you mean --lr?
slime/eval_only.py | --jsn x | unknown argument --jsn; did you mean --json?
slime/tools/convert_fsdp_to_hf.py | --imput-dir x | unknown argument --imput-dir; did you mean --input-dir?
slime/tools/convert_torch_dist_to_hf.py | --x y | add --input-dir FOLDER --origin-hf-dir FOLDER --output-dir FOLDER; --help explains it
slime/tools/convert_hf_to_torch_dist.py | --hf-checkpoint instruction --save x | no such folder; did you mean instructions?
slime/tools/merge_lora.py | --base-model instructions --adapter opnclaw --output x | did you mean openclaw?
slime/tools/merge_lora.py | --base-model openclaw --adapter openclaw --output x --dtype fp16 | 'fp16' is not one of bfloat16, float16,
lab/demo.py | --method combin | did you mean combine?
lab/demo.py | --updat 3 | unknown argument --updat; did you mean --updates?
lab/demo.py | --port 3ooo0 | --port: '3ooo0' is not a port
openclaw-test/run_eval.py | --eval-tasks conversation --model-path m --gpu-idz 0 | did you mean --gpu-ids?
openclaw-combine/collect_rollouts.py | --api-endpont x | did you mean --api-endpoint?
openclaw-combine/train_async.py | --rollout-dir instruction --checkpoint-dir x | did you mean instructions?
-m openclaw.inspect | instruction | no ledger at instruction; did you mean instructions?
-m openclaw.inspect | runs/x --turnz | unknown argument --turnz; did you mean --turn?
-m openclaw.inspect | runs/x exprt | 'exprt' is not one of export, import, forget, check, salvage; did you mean export?
-m openclaw.method | chek x | 'chek' is not one of check, clauses; did you mean check?
-m openclaw.method | check opnclaw-rl | did you mean openclaw-rl?
-m openclaw.models | Qwen3-4B --foldr x | unknown argument --foldr; did you mean --folder?
"""

# One process makes all the checks: nothing slow may ever be imported in it.
ALL = """
import contextlib, io, json, os, runpy, sys
slow, cases = json.load(sys.stdin)
answers = []
for variables, program, words in cases:
    said, code = io.StringIO(), None
    os.environ.update(variables)
    sys.argv = [program[-1], *words]
    before = set(sys.modules)
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            if program[0] == "-m":
                runpy.run_module(program[1], run_name="__main__", alter_sys=True)
            else:
                sys.path.insert(0, os.path.dirname(program[0]))
                runpy.run_path(program[0], run_name="__main__")
    except SystemExit as ended:
        code = ended.code
    for name in variables:
        del os.environ[name]
    loaded = sorted({name.partition(".")[0] for name in set(sys.modules) - before} & set(slow))
    answers.append([code, said.getvalue(), loaded])
print(json.dumps(answers))
"""


def read(line: str) -> tuple[dict[str, str], list[str], list[str], str]:
    """Return variables, program, words and expectation of a case."""
    program, words, says = (part.strip() for part in line.split("|", 2))
    variables = dict(word.split("=") for word in program.split() if "=" in word)
    return variables, [word for word in program.split() if "=" not in word], words.split(), says


PARSED = [read(line) for line in CASES.strip().splitlines()]


@pytest.fixture(scope="module")
def answers(repository: Path) -> list[Any]:
    """Per case the exit code, the output and the slow packages that it imported."""
    paths = [repository, repository / "slime", repository / "openclaw-test"]
    run = subprocess.run(
        [sys.executable, "-c", ALL],
        cwd=repository,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        input=json.dumps([SLOW, [case[:3] for case in PARSED]]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize("number", range(len(PARSED)), ids=[" ".join([*case[1], *case[2]]) for case in PARSED])
def test_the_answer_is_one_line_and_comes_before_slow_imports(answers: list[Any], number: int) -> None:
    code, said, slow = answers[number]
    assert code == 2, said
    assert PARSED[number][3] in said
    assert len(said.splitlines()) == 1, said
    assert not slow
