"""The launcher: one plan out of variables, profile and flags, the same from every folder, and clear words when it cannot work."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from groundwork.exceptions import ConfigError
from openclaw.config.runtime_variables import GATE_PATH, VARIABLES
from openclaw.launch.__main__ import main
from openclaw.launch.plan import Plan, Recipe
from openclaw.launch.profiles import GPU8, TINY_CPU
from openclaw.launch.report import STARTED_AS, describe, summary_lines
from openclaw.launch.resolve import make_plan
from openclaw.launch.variables import LAUNCH_VARIABLES, parse_gpus
from openclaw.runtime.process import free_port
from slime.arguments.checkpoint import CONTINUE_VARIABLE
from slime.utils.misc import load_function
from tests.helpers.checkpoints import config_only, looks_whole

METHODS = ("rl", "opd", "combine")
CLEAN = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}


def gpu_script(repository: Path, method: str) -> Path:
    return repository / f"openclaw-{method}" / f"run_qwen3_4b_openclaw_{method}.sh"


def run_script(script: str | Path, *words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(script), *words]
    environment = {"GPU_MEMORY_GB": "80"} | environment  # a GPU of this machine may be smaller
    return subprocess.run(command, cwd=cwd, env=CLEAN | environment, capture_output=True, text=True, check=False)


def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, **environment: str) -> str:
    """What the launcher says to what it must refuse; it starts nothing."""
    monkeypatch.setattr(os, "environ", CLEAN | environment)
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("a run was started"))
    with pytest.raises(SystemExit) as exit_:
        main(words.split())
    assert exit_.value.code == 2
    return capsys.readouterr().err


def plan(method: str = "combine", *extra: str, model: Path | None = None, **environment: str) -> Plan:
    given = {"HF_CKPT": str(model)} if model else {}
    return make_plan(Recipe(method, None, GPU8), extra, given | environment)


@pytest.mark.parametrize(("method", "folder"), zip(METHODS, [".", "slime", "own"], strict=True))
def test_gpu_scripts_dry_run(method: str, folder: str, repository: Path) -> None:
    cwd = repository / (f"openclaw-{method}" if folder == "own" else folder)
    script = os.path.relpath(gpu_script(repository, method), cwd)
    result = run_script(script, "--dry-run", "--verbose", cwd=cwd)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    for line in (
        "  actor    0-3",
        "  rollout  4-5",
        "  judge    6-7",
        "  GPU 0  actor    rank 0",
        "  GPU 7  judge    engine 0",
    ):
        assert line in lines
    assert any(line.startswith("warning: not found on this machine: --hf-checkpoint") for line in lines)
    assert f"PYTHONPATH={repository}/openclaw-{method}:{repository}:{repository}/slime" in result.stdout
    names = {line.split()[0] for line in lines if line.strip()}
    assert {variable.name for variable in (*LAUNCH_VARIABLES, *VARIABLES)} <= names


def test_a_dry_run_imports_nothing_heavy(repository: Path) -> None:
    command = (
        "import sys; sys.argv = ['launch', '--method', 'rl', '--dry-run']\n"
        "from openclaw.launch.__main__ import main\nmain()\n"
        "print([m for m in ('torch', 'ray', 'sglang', 'transformers') if m in sys.modules])"
    )
    environment = CLEAN | {"PYTHONPATH": f"{repository}:{repository}/slime", "GPU_MEMORY_GB": "80"}
    result = subprocess.run(
        [sys.executable, "-c", command], env=environment, capture_output=True, text=True, check=False, cwd=repository
    )
    assert result.stdout.splitlines()[-1] == "[]", result.stderr


SECRET = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine may have enough GPUs")
@pytest.mark.parametrize("method", METHODS)
def test_without_gpus_a_script_names_the_cpu_command(
    method: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    says = refusal(monkeypatch, capsys, f"--method {method} --model qwen3-4B")
    assert len(says.splitlines()) == 1
    assert f"bash openclaw-{method}/run_tiny_cpu.sh" in says


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"ACTOR_GPUS": "6"}, "6 actor + 2 rollout + 2 judge GPUs are 10"),
        ({"ROLLOUT_GPUS": "3", "NUM_GPUS": "9"}, "ROLLOUT_GPUS, TP"),
        ({"PRM_TP": "4"}, "PRM_GPUS, PRM_TP"),
        ({"PRM_MAX_NEW_TOKENS": "40000"}, "CONTEXT_LENGTH=32768"),
        ({"MAX_RESPONSE_LENGTH": "40000"}, "MAX_RESPONSE_LENGTH, CONTEXT_LENGTH"),
        ({"HOST": "0.0.0.0"}, "SGLANG_API_KEY"),
        ({"ACTOR_GPUS": "many"}, "write 4 or 0,1,2,3"),
        ({"LEARNING_RATE": "fast"}, "LEARNING_RATE='fast'"),
        ({"NNODES": "2", **SECRET}, "needs MASTER_ADDR"),
        ({"NNODES": "2", "MASTER_ADDR": "127.0.0.1", **SECRET}, "needs MASTER_ADDR"),
        ({"NNODES": "2", "MASTER_ADDR": "10.0.0.1"}, "openssl rand -hex 32"),
        ({"NNODES": "2", "MASTER_ADDR": "10.0.0.1", "NODE_RANK": "2", **SECRET}, "numbered 0 to 1"),
        ({"NODE_RANK": "1"}, "set NNODES"),
    ],
)
def test_an_impossible_run_fails_with_the_line_to_change(
    environment: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in refusal(monkeypatch, capsys, "--method combine --model qwen3-4B --dry-run", **environment)


def test_gpus_of_a_cpu_are_not_counted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Guides have GPUS_PER_NODE exported; no script for so many GPUs runs on this machine."""
    says = refusal(monkeypatch, capsys, "--method rl --profile tiny_cpu --dry-run", GPUS_PER_NODE="1")
    assert "but --num-gpus is 1; a CPU has none to count: unset NUM_GPUS or GPUS_PER_NODE" in says
    assert "run the script for" not in says


@pytest.mark.parametrize("typed", [{}, {"CONTEXT_LENGTH": "40000"}])
def test_a_context_longer_than_the_models_is_refused_with_the_variables_to_type(
    typed: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = looks_whole(tmp_path / "model", max_position_embeddings=4096)
    words = "--method combine --dry-run --gpu-memory-gb 80"
    said = refusal(monkeypatch, capsys, words, HF_CKPT=str(model), **typed)
    tokens = typed.get("CONTEXT_LENGTH", 32768)
    assert said.splitlines() == [
        f"launch: CONTEXT_LENGTH={tokens} is more than the 4096 tokens that {model}/config.json allows; "
        "write CONTEXT_LENGTH=4096 MAX_RESPONSE_LENGTH=2048 PRM_MAX_NEW_TOKENS=2048"
    ]
    fitting = dict(each.split("=") for each in said.split("; write ")[1].split())
    assert not plan(model=model, **fitting).problems


def test_a_profile_of_one_gpu_is_refused_on_several_machines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--method combine --profile gpu1_24gb --dry-run"
    said = refusal(monkeypatch, capsys, words, NNODES="2", MASTER_ADDR="10.0.0.1", **SECRET)
    assert "--share-gpu is for one machine" in said
    assert "lists of GPUs" not in said


def test_the_plan_of_each_machine(repository: Path) -> None:
    nodes = {"NNODES": "2", "MASTER_ADDR": "10.0.0.1", **SECRET}
    head = run_script(gpu_script(repository, "combine"), "--dry-run", "--verbose", cwd=repository, **nodes)
    assert head.returncode == 0, head.stderr
    for words in (
        *("--num-nodes 2", "--head-address 10.0.0.1:6379", "--actor-num-nodes 2", "--actor-num-gpus-per-node 4"),
        *("--rollout-num-gpus 4", "--prm-num-gpus 4", "slime/train_async.py"),
    ):
        assert words in head.stdout, words
    other = run_script(
        *(gpu_script(repository, "combine"), "--dry-run", "--verbose", "--node-timeout", "1800"),
        **{"cwd": repository, "NODE_RANK": "1", "MASTER_PORT": "7000", "NODE_ADDR": "10.0.0.2", **nodes},
    )
    assert other.returncode == 0, other.stderr
    command = other.stdout[other.stdout.index("command:") :].replace(" \\\n    ", " ")
    assert "-m slime.ray.worker_node --head-address 10.0.0.1:7000 --num-gpus 8 --device cuda" in command
    assert "--node-address 10.0.0.2" in command
    assert "--timeout 1800" in command
    assert SECRET["RAY_AUTH_TOKEN"] not in head.stdout + other.stdout


def test_in_a_ray_job_the_cluster_says_how_many_gpus_there_are(repository: Path) -> None:
    words = (gpu_script(repository, "combine"), "--dry-run", "--verbose")
    plan = run_script(*words, cwd=repository, RAY_ADDRESS="10.0.0.1:6379")
    assert plan.returncode == 0, plan.stderr
    assert "--num-gpus-per-node 8" in plan.stdout
    assert "--num-gpus 8" not in plan.stdout


def test_a_cluster_that_a_flag_names_wins_over_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = config_only(tmp_path / "model")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    joining = plan("combine", "--ray-address", "10.0.0.1:6379", model=model)
    assert joining.problems == ()
    assert joining.args.ray_address == "10.0.0.1:6379"
    assert "--num-gpus" not in joining.command
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    for own in (["--ray-address", "local"], ["--head-address", "10.0.0.2:6379"]):
        starting = plan("combine", *own, model=model, RAY_ADDRESS="10.0.0.1:6379")
        assert starting.args.ray_address is None
        assert "--num-gpus" in starting.command


def test_a_cluster_that_exists_is_given_counts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lists = {"ACTOR_GPUS": "0,1", "ROLLOUT_GPUS": "2,3", "PRM_GPUS": "4,5", "RAY_ADDRESS": "10.0.0.1:6379"}
    said = refusal(monkeypatch, capsys, "--method combine --model qwen3-4B --dry-run", **lists)
    assert "this run joins 10.0.0.1:6379" in said
    assert "as counts, or add --ray-address local" in said


def test_a_flag_with_a_typo(repository: Path) -> None:
    result = run_script(gpu_script(repository, "rl"), "--dry-run", "--rollout-batchsize", "4", cwd=repository)
    assert result.returncode == 2
    assert result.stderr.startswith("launch: ")
    assert "did you mean --rollout-batch-size?" in result.stderr


@pytest.mark.parametrize(
    ("flags", "given", "left_out"),
    [
        ((), "--gradient-checkpointing --use-rollout-logprobs", "--recompute-granularity"),
        (
            ("--train-backend", "megatron"),
            "--recompute-granularity full --recompute-method",
            "--gradient-checkpointing",
        ),
        (
            ("--train-backend=megatron", "--recompute-granularity", "selective"),
            "--recompute-granularity selective",
            "--recompute-method",
        ),
        (("--use-tis",), "--gradient-checkpointing", "--use-rollout-logprobs"),
    ],
)
def test_flags_of_the_user_replace_those_that_do_not_go_with_them(
    flags: tuple[str, ...], given: str, left_out: str, tmp_path: Path
) -> None:
    made = plan("rl", *flags, model=config_only(tmp_path / "model"), GPU_MEMORY_GB="300")  # selective keeps much
    words = [word for section in made.sections.values() for word in section]
    assert made.problems == ()
    assert set(given.split()) <= set(words)
    assert left_out not in words


def test_flags_win_over_variables_and_variables_over_profiles(tmp_path: Path) -> None:
    model = config_only(tmp_path / "model")
    assert plan(model=model).args.lr == 1e-5
    assert plan(model=model, LEARNING_RATE="3e-6").args.lr == 3e-6
    assert plan("combine", "--lr", "2e-6", model=model, LEARNING_RATE="3e-6").args.lr == 2e-6
    assert plan(model=model).problems == ()


def test_a_judge_elsewhere_reads_the_full_prompts(tmp_path: Path) -> None:
    given = {"HF_CKPT": str(config_only(tmp_path / "model"))}
    elsewhere = {"OPENCLAW_JUDGE_BASE_URL": "http://127.0.0.1:9/v1", "OPENCLAW_JUDGE_MODEL": "m"}
    tiny, other, asked = (
        make_plan(Recipe("combine", None, TINY_CPU), (), given | more).runtime.judge_prompts
        for more in ({}, elsewhere, elsewhere | {"OPENCLAW_JUDGE_PROMPTS": "brief"})
    )
    assert (tiny, other, asked) == ("brief", "full", "brief")


def test_the_summary_names_a_judge_elsewhere(tmp_path: Path) -> None:
    given = {"HF_CKPT": str(config_only(tmp_path / "model")), "OPENCLAW_JUDGE_MODEL": "m"}
    given["OPENCLAW_JUDGE_BASE_URL"] = "http://127.0.0.1:9/v1"
    assert "  judge    at http://127.0.0.1:9/v1" in summary_lines(
        make_plan(Recipe("combine", None, TINY_CPU), (), given)
    )


@pytest.mark.parametrize(
    ("method", "full", "adapter"), [("rl", 1e-5, 1e-4), ("combine", 1e-5, 1e-4), ("opd_topk", 1e-6, 1e-4)]
)
def test_an_adapter_learns_at_ten_times_the_rate(method: str, full: float, adapter: float, tmp_path: Path) -> None:
    model = config_only(tmp_path / "model")
    assert plan(method, model=model).args.lr == full
    made = plan(method, model=model, USE_LORA="1")
    assert (made.args.lr, made.warnings) == (pytest.approx(adapter), ())
    tiny, tiny_adapter = (
        make_plan(Recipe(method, None, TINY_CPU), (), {"HF_CKPT": str(model), "USE_LORA": on}) for on in "01"
    )
    assert tiny_adapter.args.lr == pytest.approx(max(10 * tiny.args.lr, 1e-4))
    low = plan(method, model=model, USE_LORA="1", LEARNING_RATE="1e-5")
    assert low.args.lr == 1e-5
    assert "an adapter needs about ten times the rate" in low.warnings[0]
    assert f"warning: {low.warnings[0]}" in describe(low)


def test_methods_differ_where_they_should(tmp_path: Path) -> None:
    model = config_only(tmp_path / "model")
    rl, opd, combine = (plan(method, model=model, OPENCLAW_COMBINE_W_OPD="0.5").args for method in METHODS)
    assert (rl.advantage_estimator, rl.rewards_normalization, rl.use_opd, rl.prm_m) == ("grpo", False, False, 3)
    assert (opd.advantage_estimator, opd.prm_m) == ("on_policy_distillation", 1)
    assert (combine.advantage_estimator, combine.use_opd, combine.opd_kl_coef) == ("grpo", True, 0.5)
    assert all(args.use_rollout_logprobs and args.rollout_temperature == 0.6 for args in (rl, opd, combine))
    assert rl.max_weight_staleness == 32
    assert plan("rl", model=model, MAX_WEIGHT_STALENESS="4").args.max_weight_staleness == 4


def test_top_k_has_its_own_defaults(tmp_path: Path) -> None:
    model = config_only(tmp_path / "model")
    found = plan("opd_topk", model=model)
    assert found.problems == ()
    args = found.args
    assert (args.lr, args.rollout_batch_size, args.prm_m, args.distill_topk) == (1e-6, 4, 3, 50)
    assert (args.loss_type, args.compute_advantages_and_returns) == ("custom_loss", False)
    assert found.variables["batch_size"].source == "method"
    assert plan("opd_topk", model=model, BATCH_SIZE="8").args.rollout_batch_size == 8


def test_gpu_lists(tmp_path: Path) -> None:
    model = config_only(tmp_path / "model")
    listed = plan(model=model, ACTOR_GPUS="2,3", ROLLOUT_GPUS="4,", PRM_GPUS="7,", TP="1", PRM_TP="1")
    assert listed.problems == ()
    assert listed.environment["CUDA_VISIBLE_DEVICES"] == "2,3,4,7"
    assert (listed.args.num_gpus, listed.args.actor_num_gpus_per_node) == (4, 2)
    with pytest.raises(ConfigError, match="share a GPU"):
        plan(ACTOR_GPUS="0,1", ROLLOUT_GPUS="1,2", PRM_GPUS="3,4")
    with pytest.raises(ConfigError, match="ascending"):
        plan(ACTOR_GPUS="4,5", ROLLOUT_GPUS="0,1", PRM_GPUS="2,3")
    with pytest.raises(ConfigError, match="all three"):
        plan(ACTOR_GPUS="4,5")
    assert parse_gpus("X", "3") == (3, None)
    assert parse_gpus("X", "3,") == (1, (3,))


def test_secrets_stay_out_of_the_plan(repository: Path) -> None:
    keys = {"SGLANG_API_KEY": "s3cret-a", "WANDB_API_KEY": "s3cret-b", "HF_TOKEN": "s3cret-c"}
    result = run_script(gpu_script(repository, "rl"), "--dry-run", "--verbose", cwd=repository, **keys)
    assert result.returncode == 0
    assert "s3cret" not in result.stdout + result.stderr
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines() if len(line.split()) == 3}
    assert rows["SGLANG_API_KEY"] == rows["WANDB_API_KEY"] == ["set", "env"]


def test_sources_are_shown(repository: Path) -> None:
    words = (gpu_script(repository, "rl"), "--dry-run", "--verbose")
    result = run_script(*words, cwd=repository, UPDATES="7", TP="1")
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines() if line.strip()}
    assert rows["NUM_ROLLOUT"] == ["7", "env", "(UPDATES)"]
    assert rows["TP"] == ["1", "env"]
    assert rows["PRM_M"] == ["3", "method"]
    assert rows["PORT"] == ["30000", "default"]
    assert rows["RUN_DIR"] == [f"{repository}/runs/{Path(words[0]).stem}", "derived"]


def test_a_dry_run_is_short_and_shows_what_the_user_set(repository: Path) -> None:
    keys = {"SGLANG_API_KEY": "s3cret-a"}
    given = ("--dry-run", "--lr", "1e-4", "--wandb-key", "s3cret-b")
    result = run_script(gpu_script(repository, "combine"), *given, cwd=repository, UPDATES="7", PORT="4000", **keys)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) <= 32
    assert lines[0].endswith("openclaw-combine, profile gpu8") or lines[0] == "method combine, profile gpu8"
    for line in ("  actor    0-3", "  serves   http://127.0.0.1:4000/v1", f"  model    {repository}/models/Qwen3-4B"):
        assert line in lines
    start = next(index for index, line in enumerate(lines) if line.startswith("you set"))
    assert lines[start + 1 : start + 7] == [
        *(
            "  GPU_MEMORY_GB=80.0",
            "  UPDATES=7",
            "  PORT=4000",
            "  SGLANG_API_KEY=***",
            "  --lr 1e-4",
            "  --wandb-key ***",
        )
    ]
    missing = [line for line in lines if line.startswith("warning: not found on this machine")]
    assert [line.split()[6] for line in missing] == ["--hf-checkpoint"]
    assert "s3cret" not in result.stdout + result.stderr
    inspects = next(line for line in lines if line.startswith("  inspect"))
    assert inspects.endswith("openclaw-rl inspect runs/run_qwen3_4b_openclaw_combine")


def test_the_driver_gets_the_line_that_continues_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, str]] = []
    model = str(config_only(tmp_path / "a model"))
    for name in ("model.safetensors", "tokenizer.json"):
        Path(model, name).write_bytes(b"")
    port = free_port("127.0.0.1", 0)
    given = {"HF_CKPT": model, "BATCH_SIZE": "4", "RESUME": "", "SGLANG_API_KEY": "s3cret", "PORT": str(port)}
    words = ["--method", "rl", "--profile", "tiny_cpu", "--wandb-key", "s3cret"]
    monkeypatch.setattr(os, "execve", lambda program, command, environment: started.append(environment))
    monkeypatch.setattr(os, "environ", CLEAN | given)
    main(words)
    monkeypatch.setattr(os, "environ", CLEAN | given | {STARTED_AS: "'bash' 'run mine.sh' '--lr' '1e-5'"})
    main(words)
    module, script = (environment[CONTINUE_VARIABLE] for environment in started)
    variables = f"HF_CKPT='{tmp_path}/a model' BATCH_SIZE=4 PORT={port} "
    assert module.startswith(variables)
    words = "launch --method rl --profile tiny_cpu --wandb-key *** --resume"
    assert module.endswith((f"/openclaw-rl {words}", f" -m openclaw {words}"))
    assert script == f"{variables}bash 'run mine.sh' --lr 1e-5 --resume"
    assert all(STARTED_AS not in environment for environment in started)


def test_a_script_says_how_it_was_started(tmp_path: Path, repository: Path) -> None:
    script = tmp_path / "my run.sh"
    script.write_text(f'source "{repository}/scripts/launch.sh"\nstarted_as\n')
    found = subprocess.run(["bash", str(script), "--lr", "a b"], capture_output=True, text=True, check=True, env=CLEAN)
    assert shlex.split(found.stdout) == ["bash", str(script), "--lr", "a b"]


def test_without_own_settings_a_dry_run_says_so(repository: Path) -> None:
    result = run_script(gpu_script(repository, "combine"), "--dry-run", cwd=repository, GPU_MEMORY_GB="")
    assert "you set nothing: all values are the defaults of " in result.stdout


@pytest.mark.parametrize("method", METHODS)
def test_the_tiny_profile(method: str, tmp_path: Path) -> None:
    model = config_only(tmp_path / "model")
    tiny = make_plan(
        Recipe(method, None, TINY_CPU), [], {"HF_CKPT": str(model), "UPDATES": "5", "RUN_DIR": str(tmp_path / "run")}
    )
    args = tiny.args
    assert tiny.problems == ()
    assert (args.device, args.train_dtype, args.num_gpus) == ("cpu", "float32", 3)
    assert (args.actor_num_gpus_per_node, args.rollout_num_gpus, args.prm_num_gpus) == (1, 1, 1)
    assert (args.num_rollout, args.save_interval, args.serve_when_done) == (5, 4, True)
    assert (args.rollout_max_context_len, args.rollout_max_response_len, args.prm_max_new_tokens) == (2048, 160, 96)
    assert (args.rollout_temperature, args.kl_loss_type, args.use_kl_loss) == (0.6, "k3", True)
    assert args.max_weight_staleness is None
    assert tiny.environment["OPENCLAW_JUDGE_PROMPTS"] == "brief"
    assert args.run_dir == str(tmp_path / "run")


def test_paths_are_relative_to_where_the_user_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repository: Path
) -> None:
    config_only(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    assert plan(HF_CKPT="mine").args.hf_checkpoint == str(tmp_path / "mine")
    assert plan().args.hf_checkpoint == str(repository / "models" / "Qwen3-4B")
    assert plan(HF_CKPT="mine").args.save == str(repository / "runs" / "gpu8-combine" / "checkpoints")


def test_the_shape_is_checked_against_the_checkpoint(tmp_path: Path) -> None:
    model = config_only(tmp_path / "model")
    wrong = make_plan(Recipe("rl", "qwen3-4B", GPU8), [], {"HF_CKPT": str(model)})
    assert any("--rotary-base 1e+06" in problem and "MODEL_ARGS_ROTARY_BASE" in problem for problem in wrong.problems)
    with pytest.raises(ConfigError, match=r"qwen3-4B"):
        make_plan(Recipe("rl", "qwen3-5B", GPU8), [], {})


def test_a_method_folder_dropped_in_is_enough(tmp_path: Path) -> None:
    folder = tmp_path / "openclaw-mymethod"
    folder.mkdir()
    found = plan(str(folder), "--rollout-function-path", "my_rollout.generate")
    assert found.environment["PYTHONPATH"].startswith(f"{folder}{os.pathsep}")
    assert found.args.rollout_function_path == "my_rollout.generate"
    with pytest.raises(
        ConfigError, match="use combine, hybrid, oel, opd, opd_topk, personal, rl, sdpo, or the path of a method folder"
    ):
        plan("openclaw-nowhere")


def test_a_live_run_has_fuses_unless_the_variable_says_otherwise(tmp_path: Path) -> None:
    model = config_only(tmp_path / "model")
    assert "train/ppo_kl>0.5" in (plan(model=model).args.fuses or [])
    assert plan(model=model, OPENCLAW_FUSES="train/ppo_kl>2 a<1").args.fuses == ["train/ppo_kl>2", "a<1"]
    assert plan(model=model, OPENCLAW_FUSES="off").args.fuses is None
    assert any("is not a fuse" in problem for problem in plan(model=model, OPENCLAW_FUSES="nonsense").problems)


def test_an_engine_is_first_where_the_variable_says_so(tmp_path: Path) -> None:
    model = config_only(tmp_path / "model")
    assert not plan(model=model, GATE="1").args.canary_engine
    two = {"GATE": "1", "ROLLOUT_GPUS": "4", "TP": "2", "NUM_GPUS": "9"}
    for share in ("0", "0.1"):
        first = plan(model=model, GATE_CANARY=share, **two)
        assert first.args.canary_engine
        assert first.runtime.gate_canary == float(share)
        assert first.problems == plan(model=model, **two).problems
    one = plan(model=model, GATE_CANARY="0.1", **(two | {"TP": "4"})).problems
    assert any(
        "--canary-engine needs 2 engines, but there is one" in each and "GATE_CANARY, ROLLOUT_GPUS" in each
        for each in one
    ), one
    (problem,) = [
        each for each in plan(model=model, GATE_CANARY="0.1", **(two | {"GATE": "0"})).problems if "canary" in each
    ]
    assert "no effect without --before-push-path; add it (variables: GATE_CANARY, GATE=1)" in problem
    with pytest.raises(ConfigError, match="GATE_CANARY"):
        plan(model=model, GATE_CANARY="0.9")


def test_the_gate_is_a_variable_and_its_tasks_are_checked_before_anything_starts(tmp_path: Path) -> None:
    model = config_only(tmp_path / "model")
    gated, open_ = plan(model=model), plan(model=model, GATE="0")
    assert gated.args.before_push_path == GATE_PATH
    assert open_.args.before_push_path is None
    assert gated.problems == open_.problems
    assert callable(load_function(GATE_PATH))
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"messages": []}')
    *_, problem = plan(model=model, OPENCLAW_GATE_TASKS=str(tasks)).problems
    assert problem.startswith(f"OPENCLAW_GATE_TASKS={tasks} line 1: messages is not a list of messages")


@pytest.mark.parametrize("flags", ["--update-weights-interval 2", "--debug-train-only", "--debug-rollout-only"])
def test_a_flag_that_cannot_have_a_gate_says_how_to_switch_it_off(tmp_path: Path, flags: str) -> None:
    model = config_only(tmp_path / "model")
    (problem,) = [
        each for each in plan("combine", *flags.split(), model=model).problems if "--before-push-path" in each
    ]
    assert problem.endswith("remove one of them (variables: GATE=0)")
    assert not [
        each for each in plan("combine", *flags.split(), model=model, GATE="0").problems if "--before-push-path" in each
    ]


def test_a_task_that_the_template_refuses_is_found_before_anything_starts(
    tmp_path: Path, tiny_random_model: Path
) -> None:
    tasks = tmp_path / "tasks.jsonl"
    good = '{"messages": [{"role": "user", "content": "2 + 3?"}], "number": 5}'
    tasks.write_text(good)
    found = {"model": tiny_random_model, "OPENCLAW_GATE_TASKS": str(tasks)}
    assert not [each for each in plan(GATE="1", **found).problems if "TASKS" in each]
    tasks.write_text(good + '\n{"messages": [{"role": "user", "content": {"odd": 1}}], "number": 5}')
    (problem,) = [each for each in plan(GATE="1", **found).problems if "TASKS" in each]
    assert problem.startswith(f"OPENCLAW_GATE_TASKS={tasks} task 2 cannot be asked: ")
    assert not [each for each in plan(GATE="0", **found).problems if "TASKS" in each]
