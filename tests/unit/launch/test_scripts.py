"""Every launch script: thin, the same from every folder, and a plan that works."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import launch_scripts
import pytest
import run_eval

from agentrl.environment import load_environment
from agentrl.harness.__main__ import build_parser as driver_parser
from agentrl.harness.__main__ import check_plan, plan_of, read_tasks
from agentrl.pool import build_parser as pool_parser
from lab import agent_demo, agent_learning, demo
from lab.tiny_learning.sets import UPDATES
from lab.tiny_models.cache import SHIPPED
from openclaw.launch.__main__ import main
from openclaw.server.__main__ import main as server
from slime.arguments import parse_args
from tests.helpers.checkpoints import looks_whole
from tests.helpers.launch_plans import Scripts, ended

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = sorted(
    str(path.relative_to(ROOT)) for path in ROOT.glob("openclaw-*/run_*.sh") if path.parent.name != "openclaw-test"
)
AGENT_DEMOS = [f"openclaw-rl/run_tiny_cpu_{name}_agent.sh" for name in ("mini_swe", "openclaw", "opencode")]
DEMOS = [script for script in SCRIPTS if "/run_tiny_cpu" in script and script not in AGENT_DEMOS]
# Their judge is elsewhere; tests/unit/launch/test_small_cards.py has them.
SMALL_CARDS = [script for script in SCRIPTS if script.endswith("_16gb.sh")]
GPU_SCRIPTS = [script for script in SCRIPTS if script not in (*DEMOS, *AGENT_DEMOS, *SMALL_CARDS)]
# Scripts that start something else than a run of the launcher, each with the words that it cannot do without.
EXAMPLE, EVALUATION, SERVER, JUDGE = (
    "extensions/example-method/run_tiny_cpu.sh",
    "openclaw-test/run_eval.sh",
    "openclaw-test/launch_user_llm.sh",
    "openclaw-test/run_judge_eval.sh",
)
LEARNING = [f"{folder}-rl/run_tiny_cpu.sh" for folder in ("gui", "swe", "terminal", "toolcall")]
TERMINAL = [
    f"terminal-rl/{name}.sh" for name in ("terminal_qwen3_8b_rl", "terminal_qwen3_8b_prm_rl_2nodes", "run_terminal_rl")
]
GUI = [
    f"gui-rl/{name}.sh" for name in ("gui_qwen3vl_4b_eval", "gui_qwen3vl_8b_rl", "gui_qwen3vl_8b_prm_rl", "run_gui_rl")
]
# Its own test, tests/contract/test_toolcall_scripts.py, has the training scripts of that folder.
TOOLCALL_AGENT = "toolcall-rl/run_toolcall_agent.sh"
# Its own test, tests/integration/test_agent_scripts.py, has this one.
POOL_SERVER = "terminal-rl/remote/run_pool_server.sh"
OTHERS = {
    **dict.fromkeys(LEARNING, ""),
    EXAMPLE: "",
    EVALUATION: "--model-path m --eval-tasks conversation",
    SERVER: "--model-path m --device cpu",
    JUDGE: "--judge-base-url http://host/v1 --judge-model m",
    **dict.fromkeys(TERMINAL, ""),
    **dict.fromkeys(GUI, ""),
    **dict.fromkeys(("terminal-rl/run_terminal_agent.sh", "gui-rl/run_gui_agent.sh", TOOLCALL_AGENT), ""),
}
NOT_LAUNCHING = ("scripts/", "slime/scripts/models/", "tests/")
MODELS = {"qwen3_4b": "qwen3-4B", "qwen3_8b": "qwen3-8B", "qwen35_4b": "qwen3.5-4B"}
SMALL = {"qwen3_1_7b": "qwen3-1.7B"}
NEVER_RELEASED = {"qwen3_7b": "qwen3-8B"}
VARIANTS = {"rl": ("", "_lora"), "opd": ("", "_lora", "_topk", "_topk_lora"), "combine": ("", "_lora")}
ONE_MODEL = ("sdpo", "oel")
HYBRIDS = {f"openclaw-combine/run_qwen3_4b_openclaw_hybrid{ending}.sh" for ending in ("", "_lora")}
WRAPPERS = (
    "openclaw-rl/run_binary_rl.sh",
    "openclaw-opd/run_opd_training.sh",
    "openclaw-combine/run_combine_training.sh",
)
CLOUDS = [f"{folder}deploy_to_{cloud}.sh" for folder in ("", "openclaw-combine/") for cloud in ("tinker", "fireworks")]
CLEAN = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
SOURCE_LINE = 'source "$(dirname "${BASH_SOURCE[0]}")/../scripts/launch.sh"'
# What a script would become, for each script from each folder: fields end in NUL, scripts in an empty field.
SHELL_PART = r"""
exec() { printf '%s\0' "$PYTHONPATH" "$@"; }
export -f exec
root="$1"; shift
while [ "$#" -gt 0 ]; do
    script="$1"; read -ra words <<<"$2"; shift 2
    (cd "$root" && bash "$script" --dry-run "${words[@]}"); printf '\0'
    (cd "$root/slime" && bash "../$script" --dry-run "${words[@]}"); printf '\0'
    (cd "$root/${script%/*}" && bash "${script##*/}" --dry-run "${words[@]}"); printf '\0'
done
"""


@cache
def shell_parts() -> dict[str, list[list[str]]]:
    """Per script the command it becomes from the root, from ``slime/`` and from its own folder."""
    scripts = {script: "" for script in SCRIPTS} | OTHERS
    words = [word for pair in scripts.items() for word in pair]
    command = ["bash", "-euc", SHELL_PART, "bash", str(ROOT), *words]
    environment = CLEAN | {"HF_CKPT": "m"}
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    commands = [part.split("\0") for part in output.removesuffix("\0\0").split("\0\0")]
    assert len(commands) == 3 * len(scripts)
    return {script: commands[3 * index : 3 * index + 3] for index, script in enumerate(scripts)}


def plan_words(script: str) -> list[str]:
    """Arguments of ``python -m openclaw.launch``."""
    command = shell_parts()[script][0]
    return command[command.index("openclaw.launch") + 1 :]


def test_every_script_that_guides_name_is_there() -> None:
    for method, endings in VARIANTS.items():
        for model in MODELS:
            for ending in endings:
                assert f"openclaw-{method}/run_{model}_openclaw_{method}{ending}.sh" in GPU_SCRIPTS
        assert f"openclaw-{method}/run_qwen3_1_7b_openclaw_{method}_24gb.sh" in GPU_SCRIPTS
        assert {f"openclaw-{method}/run_qwen3_7b_{name}{method}.sh" for name in ("openclaw_", "lora_openclaw_")} <= {
            *GPU_SCRIPTS
        }
    for method in ONE_MODEL:
        for ending in ("", "_lora"):
            assert f"openclaw-{method}/run_qwen3_4b_openclaw_{method}{ending}.sh" in GPU_SCRIPTS
        assert f"openclaw-{method}/run_tiny_cpu.sh" in DEMOS
    assert set(WRAPPERS) <= set(GPU_SCRIPTS)
    assert set(GPU_SCRIPTS) >= HYBRIDS
    assert set(DEMOS) >= {"openclaw-combine/run_tiny_cpu_hybrid.sh", "openclaw-hybrid/run_tiny_cpu.sh"}


@pytest.mark.parametrize("script", GPU_SCRIPTS)
def test_a_script_plans_the_same_run_from_every_folder(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *others = shell_parts()[script]
    assert others == [first, first]
    python_path, python, *_ = first
    assert python_path == f"{ROOT}:{ROOT / 'slime'}"
    assert python == str(ROOT / ".venv" / "bin" / "python")
    monkeypatch.setattr(os, "environ", CLEAN)
    main([*plan_words(script), "--verbose"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "dry run: the plan is valid, nothing was started"
    words = " ".join(lines)
    assert ("--use-lora" in words) == ("_lora" in script or "24gb" in script)
    for file_name, shape in (MODELS | SMALL | NEVER_RELEASED).items():
        if f"/run_{file_name}_" in script:
            assert f"/models/{shape.replace('qwen', 'Qwen')} " in words
    assert (lines[0] == "launch: there is no qwen3-7B; this run has qwen3-8B, the nearest model") == (
        "_7b_" in script and "_1_7b" not in script
    )


@pytest.mark.parametrize("name", ["HF_CKPT", "MODEL_PATH"])
def test_a_model_of_the_users_has_any_shape_in_the_place_of_one_that_is_not_there(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = looks_whole(tmp_path / "model", num_hidden_layers=5)
    monkeypatch.setattr(os, "environ", CLEAN | {name: str(model)})
    main([*plan_words("openclaw-rl/run_qwen3_7b_openclaw_rl.sh"), "--verbose"])
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == f"launch: there is no qwen3-7B; this run has the model of {name}, whatever its shape"
    assert lines[-1] == "dry run: the plan is valid, nothing was started"
    assert not [line for line in lines if "--num-layers" in line]


@pytest.mark.parametrize(
    ("typed", "folder", "says"),
    [
        ("qwen3.5-vl", "Qwen3-VL-8B", "launch: there is no qwen3.5-vl; this run has qwen3-vl-8B, the nearest model"),
        ("QWEN3-VL-4b", "Qwen3-VL-4B", "task gui, profile gpu8"),
    ],
)
def test_a_model_is_known_by_the_name_of_guides_and_in_any_spelling(
    typed: str, folder: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "environ", CLEAN)
    main([*shell_parts()["gui-rl/run_gui_agent.sh"][0][4:], "--model", typed])
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == says
    assert any(line.startswith("  model ") and line.endswith(f"/models/{folder}") for line in lines)
    assert lines[-1] == "dry run: the plan is valid, nothing was started"


def test_every_launch_script_is_that_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert launch_scripts.main(["--check"]) == 0, capsys.readouterr().out
    tracked = subprocess.run(["git", "ls-files", "*.sh"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    written = {str(path.relative_to(ROOT)) for path in launch_scripts.files()}
    others = {name for name in tracked.split() if not name.startswith((*NOT_LAUNCHING, "extensions/"))}
    assert written == others
    assert [name for name in written if not os.access(ROOT / name, os.X_OK)] == []


def test_no_launch_script_is_left_out() -> None:
    tracked = subprocess.run(["git", "ls-files", "*.sh"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    launching = {name for name in tracked.split() if not name.startswith(NOT_LAUNCHING)}
    with_their_own_test = {name for name in launching if name.startswith(("toolcall-rl/", "swe-rl/"))} - {*OTHERS}
    assert launching - with_their_own_test - {POOL_SERVER, *CLOUDS} == {*SCRIPTS, *OTHERS}


@pytest.mark.parametrize("script", [*DEMOS, *OTHERS])
def test_any_other_script_becomes_the_same_program_from_every_folder(script: str) -> None:
    first, *others = shell_parts()[script]
    assert others == [first, first]
    python_path, python, program, *_ = first
    assert python_path.split(":")[1 if script == EXAMPLE else 0] in (str(ROOT), str(ROOT / "slime"))
    assert python == str(ROOT / ".venv" / "bin" / "python")
    assert program == "-m" or (ROOT / "slime" / program).is_file()
    assert "--dry-run" in first


@pytest.mark.parametrize("script", DEMOS)
def test_the_demo_shows_its_plan(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "environ", dict(CLEAN))
    command = shell_parts()[script][0]
    monkeypatch.setattr(sys, "argv", command[2:])
    assert demo.main() == 0
    output = capsys.readouterr().out
    assert re.search(r"^demo +16 updates, 8 sessions at once", output, re.MULTILINE)
    named = {"openclaw-combine/run_tiny_cpu_hybrid.sh": "hybrid", "openclaw-tinker/run_tiny_cpu.sh": "combine"}
    method = named.get(script, script.split("/")[0].removeprefix("openclaw-"))
    assert f"method {method}, profile {'tiny_tinker' if 'tinker' in script else 'tiny_cpu'}" in output
    assert output.splitlines()[-1] == "dry run: the plan is valid, nothing was started"


@pytest.mark.parametrize("script", AGENT_DEMOS)
def test_the_demo_of_an_agent_shows_its_plan(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "environ", dict(CLEAN))
    first, *others = shell_parts()[script]
    assert others == [first, first]
    words = first[3:]
    assert agent_demo.main(words) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "dry run: the plan is valid, nothing was started"
    with pytest.raises(SystemExit, match="2"):
        agent_demo.main([*words, "--learning-rat", "1"])
    assert "unknown argument --learning-rat" in capsys.readouterr().err


@pytest.mark.parametrize("script", AGENT_DEMOS)
def test_pool_and_driver_take_what_the_demo_of_an_agent_tells_them(script: str, tmp_path: Path) -> None:
    options = agent_demo.parse([*shell_parts()[script][0][3:], "--run-dir", str(tmp_path), "--port", "31234"])
    pool = pool_parser().parse_args(agent_demo.pool_words(options))
    driver = driver_parser().parse_args(agent_demo.driver_words(options, "http://127.0.0.1:9"))
    assert pool.harness == [driver.harness] == [options.harness]
    assert pool.gateway_url == driver.gateway_url == "http://127.0.0.1:31234"
    tasks = read_tasks(driver)
    environment = load_environment(pool.env[0])
    assert set(tasks) <= {task.id for task in environment.tasks()}
    plan = plan_of(driver, tasks)
    assert (plan.group_size, plan.parallel, plan.groups) == (agent_demo.GROUP, pool.slots, None)
    check_plan(plan, driver.timeout_s)


@pytest.mark.parametrize("script", LEARNING)
def test_a_script_of_learning_agents_shows_its_plan(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shell_parts()[script][0][3:]
    assert agent_learning.main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    task = script.split("-")[0]
    assert lines[0].startswith(f"plan     {task}: {UPDATES[task]} updates of")
    assert lines[-1] == "dry run: the plan is valid, nothing was started"


@pytest.mark.parametrize(
    ("failing", "script"),
    [
        *itertools.product(["setup.sh", "setup_bubblewrap.sh"], [*LEARNING, *AGENT_DEMOS]),
        ("setup_chromium.sh", "gui-rl/run_tiny_cpu.sh"),
    ],
)
def test_a_failed_set_up_ends_the_script(script: str, failing: str, tmp_path: Path) -> None:
    for name in ("scripts/launch.sh", script):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("setup.sh", "setup_bubblewrap.sh", "setup_chromium.sh", "setup_node.sh", "setup_mini_swe_agent.sh"):
        (tmp_path / "scripts" / name).write_text(f"exit {7 if name == failing else 0}\n")
    environment = CLEAN | {"PATH": "/usr/bin:/bin"}  # no environment is active
    done = subprocess.run(["bash", tmp_path / script], env=environment, capture_output=True, check=False)
    assert done.returncode == 7


@pytest.mark.parametrize("script", [script for script in CLOUDS if "tinker" in script])
def test_a_script_of_a_service_shows_its_plan(script: str, tmp_path: Path) -> None:
    words = ["--method", "opd", "--model-name", "tiny", "--tokenizer", str(SHIPPED), "--dry-run"]
    done = subprocess.run(
        ["bash", str(ROOT / script), *words], cwd=tmp_path, env=CLEAN, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "method opd, profile tinker" in done.stdout
    with_gpus = subprocess.run(
        ["bash", str(ROOT / script), *words, "--gpus", "8"], env=CLEAN, capture_output=True, text=True, check=False
    )
    assert with_gpus.returncode == 2
    assert "--gpus: a service has the GPUs; leave it out" in with_gpus.stderr


@pytest.mark.parametrize("script", [script for script in CLOUDS if "fireworks" in script])
def test_a_script_of_fireworks_shows_its_plan(script: str, tmp_path: Path) -> None:
    words = ["--gpus", "8", "--method", "combine", "--tokenizer", str(SHIPPED), "--dry-run"]
    done = subprocess.run(
        ["bash", str(ROOT / script), *words], cwd=tmp_path, env=CLEAN, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "method combine, profile fireworks" in done.stdout
    assert "rents    a trainer job of accounts/fireworks/trainingShapes/qwen3-8b-128k and a deployment" in done.stdout


@pytest.mark.parametrize("number", demo.STOP_SIGNALS)
def test_a_signal_ends_the_build_of_the_model(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    def build(**_: object) -> None:
        signal.raise_signal(number)
        built.append(number)

    handlers = {stop: signal.getsignal(stop) for stop in demo.STOP_SIGNALS}
    monkeypatch.setattr(demo, "ensure_built", build)
    monkeypatch.setattr(sys, "argv", ["demo.py", "--port", "0", "--run-dir", str(tmp_path)])
    try:
        assert (demo.main(), built) == (130, [])
    finally:
        for stop, handler in handlers.items():
            signal.signal(stop, handler)


@pytest.mark.parametrize("script", TERMINAL)
def test_a_script_on_terminal_tasks_shows_its_plan(script: str) -> None:
    told = {"EVAL_INTERVAL": "5", "PARALLEL_ENVS": "7", "PRM_M": "3", "PRM_STEP_COEF": "0.5"}
    code, shown = ended(ROOT / script, "--dry-run", **told)
    assert code == 0
    assert shown.splitlines()[-1] == "dry run: the plan is valid, nothing was started"
    assert "a pool here with 7 slots" in shown
    assert "precedence: flag > variable" in shown
    assert "get it with: python -m openclaw.models Qwen3-8B" in shown
    assert max(map(len, shown.partition("\nwarning")[0].splitlines())) <= 130
    judged = "_prm_" in script
    args = Scripts(ROOT / "terminal-rl").planned(Path(script).name, *(f"{name}={text}" for name, text in told.items()))
    assert args.advantage_estimator == ("step_wise" if judged else "grpo")
    assert args.prm_enable == judged
    if judged:
        assert (args.prm_m, args.prm_step_coef) == (3, 0.5)


def test_the_example_method_shows_its_plan(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = shell_parts()[EXAMPLE][0]
    monkeypatch.syspath_prepend(str((repository / EXAMPLE).parent))
    with pytest.raises(SystemExit) as stopped:
        parse_args(command[3:])
    lines = capsys.readouterr().out.splitlines()
    assert stopped.value.code == 0
    assert lines[0] == "placement:"
    assert lines[1].split() == ["actor", "GPU", "0", "1", "rank(s)"]
    assert any(line.startswith("warning: not found on this machine: --hf-checkpoint m:") for line in lines)
    assert lines[-1] == "dry run: the plan is valid, nothing was started"


def test_a_dry_run_of_the_trainer_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = f"--hf-checkpoint {tmp_path} --rollout-batch-size 4 --num-rollout 1 --device cpu".split()
    words.append("--disable-rollout-global-dataset")
    assert parse_args(words).num_rollout == 1
    with pytest.raises(SystemExit) as stopped:
        parse_args([*words, "--dry-run"])
    assert stopped.value.code == 0
    assert "nothing was started" in capsys.readouterr().out


def test_the_trainers_dry_run_says_what_cannot_work(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse_args([*shell_parts()[EXAMPLE][0][3:], "--rollout-batch-size", "0"])
    captured = capsys.readouterr()
    assert stopped.value.code == 2
    assert "nothing was started" not in captured.out
    assert "--rollout-batch-size" in captured.err


def test_the_server_shows_its_plan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "environ", dict(CLEAN))
    assert server(shell_parts()[SERVER][0][4:]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "gateway  http://127.0.0.1:30001/v1, context 32768" in lines
    assert lines[-1] == "dry run: the plan is valid, nothing was started"


def test_the_evaluation_shows_its_plan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "environ", dict(CLEAN))
    words = shell_parts()[EVALUATION][0][3:]
    assert run_eval.main([*words, "--device", "cpu"]) == 0
    assert "tasks    conversation, 16 problems each" in capsys.readouterr().out
    base_url = ["--base-url", "http://127.0.0.1:1/v1", "--eval-tasks", "tool-use", "--dry-run"]
    assert run_eval.main(base_url) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "dry run: the plan is valid, nothing was started"


AGENTS = {
    "terminal-rl/run_terminal_agent.sh": ("TASK_TYPE=bash_commands MAX_STEPS=50", "at most 50 replies"),
    "gui-rl/run_gui_agent.sh": ("SCREENSHOT_BACKEND=selenium MAX_STEPS=7 PARALLEL_ENVS=3", "at most 7 replies"),
    "swe-rl/run_swe_agent.sh": ("SWE_BENCHMARK=easy MAX_STEPS=9 PARALLEL_ENVS=2", "at most 9 commands"),
    TOOLCALL_AGENT: ("TOOLS_CONFIG=toolcall-rl/tools_config.json PARALLEL_ENVS=6", "this run with 6 slots"),
}


@pytest.mark.parametrize("script", AGENTS)
def test_the_script_of_an_agent_trains_and_shows_what_variables_decided(script: str) -> None:
    given, says = AGENTS[script]
    code, shown = ended(ROOT / script, "--dry-run", **dict(item.split("=") for item in given.split()))
    assert code == 0
    run, typed = shown.partition("\nyou set ")[::2]
    assert says in run
    assert "\n  learns   from " in run
    for item in given.split():
        name, value = item.split("=")
        assert f"\n  {name}=" in typed
        assert value in run + typed
    assert max(map(len, shown.partition("\nwarning")[0].splitlines())) <= 130


@pytest.mark.parametrize("script", AGENTS)
@pytest.mark.parametrize(
    "words", [["--served"], ["--base-url", "http://h/v1"], ["--evaluate", "--base-url=http://h/v1"]], ids=" ".join
)
def test_a_served_model_plays_where_a_flag_or_an_address_asks_for_it(script: str, words: list[str]) -> None:
    command = [
        "bash",
        "-euc",
        'exec() { printf \'%s\\n\' "$@"; }; export -f exec; bash "$@"',
        "bash",
        script,
        *words,
        "--x",
    ]
    output = subprocess.run(
        command, cwd=ROOT, env=CLEAN, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert output[1].startswith(f"{ROOT / script.split('/')[0]}/")
    assert output[1].endswith(".py")
    assert output[2:] == [*(word for word in words if word not in ("--served", "--evaluate")), "--x"]


def test_an_option_of_the_served_model_says_what_it_needs() -> None:
    code, printed = ended(ROOT / "gui-rl" / "run_gui_agent.sh", "--tasks", "5", "--dry-run")
    assert code == 2
    assert printed.splitlines()[-1].startswith("launch: --served plays with the model of a server instead of training")


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_has_nothing_but_its_model_and_method_lines(script: str) -> None:
    shebang, comment, source, call = (ROOT / script).read_text().splitlines()
    assert shebang == "#!/usr/bin/env bash"
    assert comment.startswith("# ")
    assert source == SOURCE_LINE
    beginning = (
        r"agent_demo --harness [\w-]+" if script in AGENT_DEMOS else r"(launch|demo) --method \S+( --model \S+)?"
    )
    assert re.fullmatch(beginning + r'( --\S+( [\w.]+)?)* "\$@"', call)
    assert os.access(ROOT / script, os.X_OK)


def test_no_two_scripts_do_the_same() -> None:
    calls = [(ROOT / script).read_text().splitlines()[-1] for script in GPU_SCRIPTS if script not in WRAPPERS]
    assert len(set(calls)) == len(calls)


def test_arrays_of_a_copied_script_reach_the_trainer(tmp_path: Path) -> None:
    script = tmp_path / "run_mine.sh"
    script.write_text(
        f'source "{ROOT}/scripts/launch.sh"\nOPTIMIZER_ARGS=(--lr 3e-6)\nPRM_ARGS=()\n'
        'SGLANG_ARGS=(--sglang-log-level "very quiet")\n'
        "CKPT_ARGS=(--load \"/home/jürgen/it's\" $'two\\nlines' '')\n"
        'launch --method rl --model qwen3-4B "$@"\n'
    )
    prefix = (
        "exec() { printf '%s\\n' \"$@\"; printenv -0 OPTIMIZER_ARGS PRM_ARGS SGLANG_ARGS CKPT_ARGS; }; export -f exec; "
    )
    command = ["bash", "-euc", prefix + f'bash "{script}" --lr 1e-6']
    environment = {**CLEAN, "LC_ALL": "C"}
    output = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=True).stdout
    *words, first = output.split("\0")[0].splitlines()
    assert words[3:11] == ["--name", "run_mine", "--method", "rl", "--model", "qwen3-4B", "--lr", "1e-6"]
    assert [shlex.split(text) for text in (first, *output.split("\0")[1:-1])] == [
        ["--lr", "3e-6"],
        [],
        ["--sglang-log-level", "very quiet"],
        ["--load", "/home/jürgen/it's", "two\nlines", ""],
    ]


def test_lora_is_an_option_of_every_script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "environ", CLEAN)
    main([*plan_words("openclaw-combine/run_combine_training.sh"), "--lora", "--verbose"])
    output = capsys.readouterr().out
    assert "method combine, profile gpu4_lora" in output
    assert "--use-lora" in output


def test_one_gpu_holds_all_roles(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "environ", CLEAN)
    main([*plan_words("openclaw-combine/run_qwen3_1_7b_openclaw_combine_24gb.sh"), "--verbose"])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if re.fullmatch(r"  GPU 0  \w+ +(rank|engine) \d", line)] == [
        "  GPU 0  actor    rank 0",
        "  GPU 0  rollout  engine 0",
        "  GPU 0  judge    engine 0",
    ]


def test_help_names_the_options_and_where_the_rest_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*plan_words(WRAPPERS[0]), "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    for word in ("--dry-run", "--lora", "--profile", "instructions/configuration.md"):
        assert word in text


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--sglang-quantization", "fp8"), "use --sglang-kv-cache-dtype fp8_e4m3"),
        (("--share-gpu",), "--share-gpu is for one trainer rank"),
        (
            ("--use-routing-replay",),
            "--use-routing-replay needs --train-backend megatron",
        ),  # without its checkpoint too
        (("--train-backend", "fsdp", "--model", "qwen3-5B"), "no model shape 'qwen3-5B'"),
    ],
)
def test_what_cannot_work_is_said_in_the_dry_run(
    flags: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "environ", CLEAN)
    with pytest.raises(SystemExit):
        main(["--method", "rl", "--dry-run", *flags])
    assert says in capsys.readouterr().err
