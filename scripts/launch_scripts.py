"""Write every launch script from one table: ``python scripts/launch_scripts.py``; with ``--check`` only compare them.

Guarantees: a script of the table is four lines, one of which says what it does and one of which calls `launch.sh`. A script that is
not in the table, such as that of a folder of your own, is left alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
OPTIONS = "--help lists the options."
VARIABLES = "--help lists variables."
EXECUTABLE = 0o755


class Script(NamedTuple):
    """A launch script: its path, what it does, and its call of ``scripts/launch.sh`` without the user's own words."""

    path: str
    does: str
    call: str

    def text(self) -> str:
        """Return the script."""
        up = "../" * self.path.count("/")
        source = f'source "$(dirname "${{BASH_SOURCE[0]}}")/{up}scripts/launch.sh"'
        comment = "\n".join(f"# {line}" for line in self.does.split("\n"))
        return f'#!/usr/bin/env bash\n{comment}\n{source}\n{self.call} "$@"\n'


# Method, its name in a sentence, its usual script, and the models that it has scripts for.
METHODS = {
    "rl": ("Binary RL", "run_binary_rl"),
    "opd": ("on-policy distillation", "run_opd_training"),
    "combine": ("Combine", "run_combine_training"),
}
MODELS = {"qwen3_4b": "qwen3-4B", "qwen3_8b": "qwen3-8B", "qwen35_4b": "qwen3.5-4B"}
EIGHT, FOUR = "8 GPUs: 4 train, 2 serve, 2 judge.", "LoRA, 4 GPUs: 2 train, 1 serves, 1 judges."
DEMO = f"The whole loop on a CPU with a tiny model: talk, judge, train, measure. {OPTIONS}"
LEARNS = "warm start, GRPO with sandboxed episodes, held-out tasks before and after"
SERVED = "--served plays with the model of a server instead."


def model_name(shape: str) -> str:
    """Return the model of a shape as people write it: ``Qwen3-4B`` for ``qwen3-4B``."""
    return shape.replace("qwen", "Qwen")


def pair(
    folder: str, file: str, method: str, shape: str, what: str, sizes: tuple[str, str] = (EIGHT, FOUR)
) -> Iterator[Script]:
    """Yield the script of a method and a model for 8 GPUs, and that with adapters for 4."""
    for ending, more, size in (("", "", sizes[0]), ("_lora", " --lora", sizes[1])):
        call = f"launch --method {method} --model {shape}{more}"
        yield Script(f"{folder}/{file}{ending}.sh", f"{model_name(shape)}, {what}, {size}", call)


def method_scripts() -> Iterator[Script]:
    """Yield the scripts of the methods on live conversations."""
    for method, (what, usual) in METHODS.items():
        folder = f"openclaw-{method}"
        does = f"Qwen3-4B, {what}; --lora trains adapters on 4 GPUs instead of 8."
        yield Script(f"{folder}/{usual}.sh", does, f"launch --method {method} --model qwen3-4B")
        for file, shape in MODELS.items():
            yield from pair(folder, f"run_{file}_openclaw_{method}", method, shape, what)
            if method == "opd":
                topk = f"{what} of 50 tokens a position"
                yield from pair(folder, f"run_{file}_openclaw_opd_topk", "opd_topk", shape, topk)
        for middle, more, size in (("", "", EIGHT), ("_lora", " --lora", FOUR)):
            yield Script(
                f"{folder}/run_qwen3_7b{middle}_openclaw_{method}.sh",
                f"The name of older guides; as there is no Qwen3-7B, it runs MODEL_PATH or Qwen3-8B, {what}, {size}",
                f"launch --method {method} --model qwen3-7B{more}",
            )
        yield Script(
            f"{folder}/run_qwen3_1_7b_openclaw_{method}_24gb.sh",
            f"Qwen3-1.7B, {what}, LoRA, one GPU with 24 GB that trains, serves and judges.",
            f"launch --method {method} --model qwen3-1.7B --profile gpu1_24gb",
        )
        yield Script(
            f"{folder}/run_qwen3_4b_openclaw_{method}_16gb.sh",
            f"Qwen3-4B, {what}, LoRA over a 4-bit base, one GPU with 16 GB that trains and serves; OPENCLAW_JUDGE_BASE_URL judges.",
            f"launch --method {method} --model qwen3-4B --profile gpu1_16gb",
        )
    yield Script(
        "openclaw-combine/run_qwen3_4b_openclaw_combine_fp8.sh",
        f"Qwen3-4B, Combine, FP8 key/value cache in the engines, {EIGHT}",
        "launch --method combine --model qwen3-4B --profile gpu8_fp8",
    )
    file = "run_qwen3_4b_openclaw_"
    yield from pair("openclaw-combine", f"{file}hybrid", "hybrid", "qwen3-4B", "Hybrid")
    yield Script(
        f"openclaw-personal/{file}personal_lora.sh",
        f"Qwen3-4B, lessons at once and practice into adapters, {FOUR}",
        "launch --method personal --model qwen3-4B --lora",
    )
    yield from pair("openclaw-oel", f"{file}oel", "oel", "qwen3-4B", "online experiential learning")
    without = "8 GPUs: 4 train, 4 serve; no judge.", "LoRA, 4 GPUs: 2 train, 2 serve; no judge."
    yield from pair("openclaw-sdpo", f"{file}sdpo", "sdpo", "qwen3-4B", "SDPO on raw follow-ups", without)


TASKS = (
    (
        "terminal",
        "terminal_qwen3_8b_rl",
        f"Qwen3-8B on terminal tasks, GRPO, 8 GPUs: 4 train, 4 serve. {VARIABLES}",
        "qwen3-8B --name terminal-qwen3-8b",
    ),
    (
        "terminal",
        "terminal_qwen3_8b_prm_rl_2nodes",
        f"Qwen3-8B on terminal tasks with a judge of steps, 2 machines with 8 GPUs: 4 train, 4 serve, 8 judge. {VARIABLES}",
        "qwen3-8B --profile gpu8_judge --name terminal-qwen3-8b-prm",
    ),
    (
        "terminal",
        "run_terminal_rl",
        f"Qwen3-8B on terminal tasks under the name of older guides: ENV_TYPE=terminal MAX_STEPS=20 PARALLEL_ENVS=32. {VARIABLES}",
        "qwen3-8B --name terminal-rl",
    ),
    (
        "gui",
        "gui_qwen3vl_8b_rl",
        f"Qwen3-VL-8B on screen tasks, GRPO, 8 GPUs: 4 train, 4 serve. {VARIABLES}",
        "qwen3-vl-8B --name gui-qwen3vl-8b",
    ),
    (
        "gui",
        "gui_qwen3vl_8b_prm_rl",
        f"Qwen3-VL-8B on screen tasks with a judge that sees each step, 8 GPUs: 4 train, 2 serve, 2 judge. {VARIABLES}",
        "qwen3-vl-8B --profile gpu8_judge --name gui-qwen3vl-8b-prm",
    ),
    (
        "gui",
        "gui_qwen3vl_4b_eval",
        f"Qwen3-VL-4B on held-out screen tasks, without training: 8 GPUs serve, runs/gui-qwen3vl-4b-eval/scores.json has the result. {VARIABLES}",
        "qwen3-vl-4B --name gui-qwen3vl-4b-eval --evaluate",
    ),
    (
        "gui",
        "run_gui_rl",
        f"Qwen3-VL-8B on screen tasks under the name of older guides: ENV_TYPE=gui SCREENSHOT_BACKEND=playwright PARALLEL_ENVS=16. {VARIABLES}",
        "qwen3-vl-8B --name gui-rl",
    ),
    (
        "swe",
        "run_swe_rl",
        f"Issues, Qwen3-4B, under the name of older guides: ENV_TYPE=swe SWE_BENCH_PATH=FOLDER PARALLEL_ENVS=8. {VARIABLES}",
        "qwen3-4B",
    ),
    (
        "swe",
        "scripts/run_swe_rl",
        f"Issues, Qwen3-4B, GRPO: 8 GPUs, 4 train, 4 serve. Generated instances, or those of SWE_BENCH_PATH. {VARIABLES}",
        "qwen3-4B",
    ),
    (
        "swe",
        "scripts/run_swe_rl_8b_remote_2nodes",
        "Issues, Qwen3-8B, GRPO: 2 machines with 8 GPUs, 8 train, 8 serve.",
        "qwen3-8B --profile nodes2",
    ),
    (
        "swe",
        "scripts/run_swe_rl_8b_prm_5nodes_remote",
        "Issues, Qwen3-8B with a judge of each step: 5 machines with 8 GPUs, 16 train, 16 serve, 8 judge.",
        "qwen3-8B --profile nodes4_judge",
    ),
    (
        "swe",
        "scripts/run_swe_rl_32b_remote_4nodes",
        "Issues, Qwen3-32B, GRPO: 4 machines with 8 GPUs, 16 train, 16 serve.",
        "qwen3-32B --profile nodes4_32b",
    ),
    (
        "swe",
        "scripts/run_swe_rl_32b_remote_8nodes",
        "Issues, Qwen3-32B, GRPO: 8 machines with 8 GPUs, 32 train, 32 serve.",
        "qwen3-32B --profile nodes8_32b",
    ),
    (
        "swe",
        "scripts/run_swe_rl_32b_remote_8nodes_resume",
        "As run_swe_rl_32b_remote_8nodes.sh, from the checkpoint folder RESUME_LOAD; by default from that of that script.",
        "qwen3-32B --profile nodes8_32b_resume --name run_swe_rl_32b_remote_8nodes",
    ),
    (
        "toolcall",
        "run_toolcall_rl",
        f"Tool tasks, Qwen3-4B, GRPO: 8 GPUs. Generated tasks, or those of PROMPT_DATA, with the tools of TOOLS_CONFIG. {VARIABLES}",
        "qwen3-4B",
    ),
    (
        "toolcall",
        "retool_qwen3_4b_rl",
        "ReTool, Qwen3-4B, GRPO: 8 GPUs, 4 train, 4 serve.",
        "qwen3-4B --profile gpu8_retool",
    ),
    (
        "toolcall",
        "retool_qwen3_4b_prm_rl",
        "ReTool, Qwen3-4B, with a judge of each step: 8 GPUs, 2 train, 4 serve, 2 judge.",
        "qwen3-4B --profile gpu8_retool_judge",
    ),
    (
        "toolcall",
        "retool_qwen3_4b_sft",
        "ReTool, Qwen3-4B, supervised start: 8 GPUs train, none serve.",
        "qwen3-4B --profile gpu8_sft",
    ),
    (
        "toolcall",
        "retool_qwen25_32b_rl_4nodes",
        "ReTool, Qwen2.5-32B, GRPO: 4 machines with 8 GPUs: 16 train, 16 serve.",
        "qwen2.5-32B --profile nodes4_32b",
    ),
    (
        "toolcall",
        "retool_qwen25_32b_prm_rl_5nodes",
        "ReTool, Qwen2.5-32B, with a judge of each step: 5 machines with 8 GPUs: 16 train, 16 serve, 8 judge.",
        "qwen2.5-32B --profile nodes4_32b_judge",
    ),
)
"""Task, file of its script, what it does, and model with options."""

AGENTS = (
    (
        "terminal",
        f"Qwen3-8B on terminal tasks, GRPO, 8 GPUs: TASK_TYPE=bash_commands MAX_STEPS=50. {SERVED}",
        "terminal_agent.py",
        "qwen3-8B",
    ),
    (
        "gui",
        f"Qwen3-VL-8B on screen tasks, GRPO, 8 GPUs: SCREENSHOT_BACKEND=playwright. {SERVED}",
        "gui_agent.py",
        "qwen3-vl-8B",
    ),
    ("swe", f"Issues, Qwen3-4B, GRPO, 8 GPUs: --benchmark NAME. {SERVED}", "eval/eval_swe.py", "qwen3-4B"),
    (
        "toolcall",
        f"Tool tasks, Qwen3-4B, GRPO, 8 GPUs: TOOLS_CONFIG=FILE. {SERVED}",
        "toolcall_agent.py",
        "qwen3-4B",
    ),
)
"""Task, what its script for agents does, the program in which a served model plays the tasks, and model."""

PROGRAMS = (
    (
        "terminal-rl/remote/run_pool_server",
        f"Lends out terminals of this machine to trainers of others: WORKER_MAX_TASKS, ENV_SERVER_PORT, AGENTRL_KEY. {VARIABLES}",
        "terminal-rl/remote/pool_server.py",
    ),
    (
        "swe-rl/eval/run_eval_swe",
        f"As ../run_swe_agent.sh --served: serve the model first, and name its address with --api-base. {OPTIONS}",
        "swe-rl/eval/eval_swe.py",
    ),
    (
        "openclaw-test/run_eval",
        f"Lets the server at http://127.0.0.1:30000/v1 do small tasks, or with --model-path P a checkpoint. {OPTIONS}",
        "openclaw-test/run_eval.py",
    ),
    (
        "openclaw-test/run_judge_eval",
        f"Measures a judge on labelled next states: accuracy, abstention, wrong signs, agreement, latency. {OPTIONS}",
        "openclaw-test/run_judge_eval.py",
    ),
)
"""File of a script, what it does, and the program that it becomes."""


def demo_scripts() -> Iterator[Script]:
    """Yield the scripts that learn on a CPU."""
    for method in ("rl", "opd", "combine", "hybrid", "sdpo", "oel", "personal"):
        yield Script(f"openclaw-{method}/run_tiny_cpu.sh", DEMO, f"demo --method {method}")
    service = f"The same at a service of the Tinker interface, which is a server of ours on this machine. {OPTIONS}"
    yield Script("openclaw-tinker/run_tiny_cpu.sh", service, "demo --method combine --device tinker")
    hybrid = f"Hybrid: {DEMO[0].lower()}{DEMO[1:]}"
    yield Script("openclaw-combine/run_tiny_cpu_hybrid.sh", hybrid, "demo --method hybrid")
    for harness, name in (("mini-swe-agent", "mini-swe-agent"), ("openclaw", "OpenClaw"), ("opencode", "opencode")):
        yield Script(
            f"openclaw-rl/run_tiny_cpu_{harness.replace('-', '_')}{'_agent' * (harness != 'mini-swe-agent')}.sh",
            f"{name} is trained on a task on a CPU: a tiny policy, a pool of sandboxes, the driver and the trainer. {OPTIONS}",
            f"agent_demo --harness {harness}",
        )
    engine = "GRPO on a real engine"
    for task, does in (
        ("terminal", f"A tiny terminal agent learns on a CPU: {LEARNS}."),
        (
            "gui",
            f"A tiny agent at a screen learns on a CPU: warm start, {engine} and browser, held-out tasks before and after.",
        ),
        ("swe", f"A tiny agent learns on a CPU to mend repositories: {LEARNS}."),
        (
            "toolcall",
            f"A tiny tool-calling agent learns on a CPU: warm start, {engine}, held-out tasks before and after.",
        ),
    ):
        yield Script(f"{task}-rl/run_tiny_cpu.sh", f"{does} {OPTIONS}", f"agent_learning --task {task}")


def scripts() -> Iterator[Script]:
    """Yield every launch script."""
    yield from method_scripts()
    yield from demo_scripts()
    for task, file, does, model in TASKS:
        yield Script(f"{task}-rl/{file}.sh", does, f"launch --task {task} --model {model}")
    for task, does, program, model in AGENTS:
        call = f"agent {task}-rl/{program} --task {task} --model {model} --"
        yield Script(f"{task}-rl/run_{task}_agent.sh", does, call)
    for file, does, program in PROGRAMS:
        folder, *inner = program.split("/")
        # A program below its folder imports modules of that folder.
        paths = f'PYTHONPATH="$openclaw_root/{folder}${{PYTHONPATH:+:$PYTHONPATH}}" ' if len(inner) > 1 else ""
        yield Script(f"{file}.sh", does, f'{paths}program "$openclaw_root/{program}"')
    yield Script(
        "openclaw-test/launch_user_llm.sh",
        "Serves a model of its own for simulated users or API judges: --model-path P [--gpu-ids 0,1] on port 30001. The users here\n"
        f"(user_chat.py) have fixed rules; with --user-base-url this model writes their reactions. {OPTIONS}",
        "program -m openclaw.server --port 30001",
    )

    for folder in ("", "openclaw-combine/"):
        yield Script(
            f"{folder}deploy_to_tinker.sh",
            "Learns from conversations with a model that a service of the Tinker interface trains and samples; --help lists the options.",
            'program "$openclaw_root/openclaw-tinker/run.py"',
        )
        yield Script(
            f"{folder}deploy_to_fireworks.sh",
            "Learns from conversations with a model that Fireworks trains and samples, on what it rents there; --help lists the options.",
            'program "$openclaw_root/openclaw-fireworks/run.py"',
        )


def files() -> dict[Path, str]:
    """Return the text of every generated script by its file."""
    return {ROOT / script.path: script.text() for script in scripts()}


def main(argv: Sequence[str] | None = None) -> int:
    """Write the scripts; with ``--check`` return 1, with the names of those that differ."""
    parser = argparse.ArgumentParser(prog="python scripts/launch_scripts.py", description="Write the launch scripts.")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; name the scripts that differ from the table"
    )
    check = parser.parse_args(argv).check
    differ = [path for path, text in files().items() if not path.is_file() or path.read_text() != text]
    for path in differ:
        if not check:
            path.write_text(files()[path])
            path.chmod(EXECUTABLE)
        print(f"{'differs: ' if check else ''}{path.relative_to(ROOT)}")
    return 1 if check and differ else 0


if __name__ == "__main__":
    sys.exit(main())
