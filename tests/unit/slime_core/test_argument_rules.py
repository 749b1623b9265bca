"""The derivations and checks of the contract, in its order (1.9)."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.arguments import parse_args
from slime.arguments.rollout import ENVIRONMENTS
from tests.helpers.arguments import refusal
from tests.helpers.checkpoints import published

PROMPTS = "--prompt-data p.jsonl --rollout-max-response-len 64"


def checkpointed(folder: Path) -> Path:
    """A folder that looks like one with a checkpoint after three rollouts."""
    published(folder, 3)
    return folder


def test_a_kl_needs_its_reference(base: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = [*base, "--use-kl-loss"]
    assert parse_args(words).ref_load == base[1]
    assert "--ref-load nowhere: no such folder" in refusal(capsys, [*words, "--ref-load", "nowhere"])


@pytest.mark.parametrize("mode", [[], ["--megatron-to-hf-mode", "bridge"]])
def test_load_goes_on_where_its_checkpoint_is_in_every_mode(base: list[str], tmp_path: Path, mode: list[str]) -> None:
    folder = checkpointed(tmp_path / "earlier")
    args = parse_args([*base, "--load", str(folder), *mode])
    assert (args.load, args.start_rollout_id) == (str(folder), None)  # None: from the checkpoint


def test_the_first_run_of_a_script_that_loads_what_it_saves(
    base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "save"
    words = [*base, "--load", str(folder), "--save", str(folder), "--save-interval", "1"]
    assert parse_args(words).load == str(folder)
    checkpointed(folder)
    assert parse_args(words).load == str(folder)
    assert (
        parse_args([*base, "--load", f"{folder}/", "--save", str(folder), "--save-interval", "1"]).load == f"{folder}/"
    )
    assert "neither" not in refusal(capsys, [*base, "--load", str(tmp_path / "other")])
    empty = tmp_path / "empty"
    empty.mkdir()
    for other in (tmp_path / "other", empty):
        assert f"--load {other}: no such folder with a checkpoint" in refusal(capsys, [*base, "--load", str(other)])
    assert parse_args([*base, "--load", base[1]]).load == base[1]


def test_resume_names_one_folder(base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save, other = checkpointed(tmp_path / "save"), checkpointed(tmp_path / "other")
    words = [*base, "--save", str(save), "--resume"]
    assert f"--load {other} contradicts --resume" in refusal(capsys, [*words, "--load", str(other)])
    for same in ([], ["--load", f"{save}/"]):
        assert Path(parse_args([*words, *same]).load) == save


def test_intervals_need_what_they_write(base: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "--save-interval needs --save" in refusal(capsys, [*base, "--save-interval", "2"])
    assert "--eval-interval needs" in refusal(capsys, [*base, "--eval-interval", "2"])
    for own in (["--eval-function-path", "my.evaluate"], ["--data-source-path", "my.Prompts"]):
        assert parse_args([*base, "--eval-interval", "2", *own]).eval_interval == 2


def test_one_kl_at_a_time_and_excluded_pairs(base: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    twice = ["--kl-coef", "0.1", "--use-kl-loss", "--kl-loss-coef", "0.1"]
    assert "count the KL twice" in refusal(capsys, [*base, *twice])
    plus = ["--advantage-estimator", "reinforce_plus_plus"]
    assert "add --normalize-advantages" in refusal(capsys, [*base, *plus])
    assert "remove one of them" in refusal(capsys, [*base, "--use-rollout-logprobs", "--use-tis"])
    assert "--get-mismatch-metrics needs --custom-tis" in refusal(capsys, [*base, "--get-mismatch-metrics"])
    assert "needs --max-tokens-per-gpu" in refusal(capsys, [*base, "--use-dynamic-batch-size"])


def test_values_that_follow_from_others(base: list[str]) -> None:
    args = parse_args([*base, "--eps-clip", "0.3", "--reward-key", "score"])
    assert (args.eps_clip_high, args.eval_reward_key) == (0.3, "score")
    assert args.eval_function_path == args.rollout_function_path
    assert args.over_sampling_batch_size == 16
    assert parse_args([*base, "--rollout-max-context-len", "100"]).rollout_max_prompt_len == 99


def test_a_judge_has_gpus_that_divide(base: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "--prm-enable needs --prm-num-gpus" in refusal(capsys, [*base, "--prm-enable"])
    uneven = ["--prm-enable", "--prm-num-gpus", "3", "--prm-num-gpus-per-engine", "2"]
    assert "--prm-num-gpus 3 is not a multiple" in refusal(capsys, [*base, *uneven])
    assert parse_args([*base, "--prm-enable", "--prm-num-gpus", "2"]).prm_model_path == base[1]


def test_replaying_a_dump_trains_only(base: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    args = parse_args([*base, "--load-debug-rollout-data", "d/{rollout_id}.pt"])
    assert (args.debug_train_only, args.rollout_num_gpus) == (True, 0)
    assert not args.rollout_global_dataset  # it needs no prompts
    held_out = [
        "--eval-interval",
        "1",
        "--eval-prompt-data",
        "held_out",
        "set.jsonl",
        "--eval-function-path",
        "my.evaluate",
    ]
    replay = parse_args([*base, "--load-debug-rollout-data", "d/{rollout_id}.pt", *held_out])
    assert replay.eval_interval is None  # no engine that could answer
    for function in ("slime.rollout.sglang_rollout.generate_rollout", "slime.rollout.fully_async_rollout.f"):
        live = ["--debug-train-only", "--rollout-function-path", function]
        assert "--debug-train-only needs --load-debug-rollout-data" in refusal(capsys, [*base, *live])
    both = ["--debug-rollout-only", "--load-debug-rollout-data", "d"]
    assert "remove one of them" in refusal(capsys, [*base, *both])


def test_a_group_of_one_has_no_deviation(base: list[str]) -> None:
    assert parse_args(base).grpo_std_normalization is False
    assert parse_args([*base, "--n-samples-per-prompt", "2"]).grpo_std_normalization is True


def test_over_sampling_and_the_end_of_a_run(
    base: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "smaller than --rollout-batch-size" in refusal(capsys, [*base, "--over-sampling-batch-size", "8"])
    endless = [word for word in base if word not in ("--num-rollout", "2")]
    assert "no length of the run: add --num-rollout" in refusal(capsys, endless)
    assert "--num-epoch needs --prompt-data" in refusal(capsys, [*endless, "--num-epoch", "2"])
    assert parse_args([*endless, "--num-epoch", "2", *PROMPTS.split()]).num_epoch == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--only-train-params-name-list a --freeze-params-name-list b", "exclude each other"),
        ("--freeze-params-name-list b --use-lora", "use --lora-target-modules"),
        ("--lora-rank 16 --lora-alpha 4", "--lora-rank, --lora-alpha has no effect without --use-lora"),
        ("--lora-target-modules q_proj", "--lora-target-modules has no effect without --use-lora"),
        ("--lora-dropout 0.1", "--lora-dropout has no effect without --use-lora"),
        ("--ref-update-interval 2", "no effect without a reference"),
        ("--ref-update-interval 2 --use-kl-loss --use-lora", "not supported with --use-lora"),
        ("--use-rollout-entropy --use-rollout-logprobs", "remove one of them"),
        ("--use-rollout-entropy --loss-type sft_loss", "which this run skips"),
        ("--lr-decay-style WSD", "needs --lr-wsd-decay-iters"),
        ("--lr-wsd-decay-iters 3", "no effect without --lr-decay-style WSD"),
        ("--use-checkpoint-lr-scheduler", "no effect without --load or --resume"),
        ("--override-lr-scheduler --use-checkpoint-lr-scheduler", "contradict each other"),
        ("--lr-warmup-fraction 0.1 --lr-warmup-iters 3", "remove one"),
        ("--lr 1e-6 --min-lr 1e-5", "--min-lr 1e-05 is above --lr 1e-06"),
        ("--profile-target train_actor", "no effect without --use-pytorch-profiler"),
        ("--use-pytorch-profiler --profile-step-end 3", "is not after --profile-step-start 10"),
        ("--update-weights-interval 0", "give 1 or more"),
        ("--ray-address auto --num-nodes 2", "--num-nodes is for a cluster that the run starts"),
        ("--ray-address a:1 --head-address a:1", "--head-address is for a cluster that the run starts"),
        ("--ray-address a:1 --num-gpus 8", "remove it, or give --ray-address local"),
        ("--ray-address http://a:8265", "http://a:8265 is a Ray dashboard address; use `ray job submit"),
        ("--ray-address ray://a:10001", "a Ray client address"),
        ("--head-address a", "--head-address a: write HOST:PORT"),
        ("--head-address a:1", "--head-address has no effect on one machine"),
        ("--forward-env X", "--forward-env has no effect on one machine"),
        ("--num-nodes 0", "--num-nodes 0: give 1 or more"),
        ("--num-nodes 2", "--num-nodes 2 needs --head-address HOST:PORT"),
        ("--num-nodes 2 --head-address here:1 --actor-num-nodes 3", "3 is more than --num-nodes 2"),
        ("--num-nodes 2 --head-address here:1 --num-gpus 16", "remove --num-gpus"),
        ("--num-nodes 2 --head-address here:1 --http-proxy http://p", "--http-proxy is for one machine"),
        (
            "--num-nodes 2 --head-address here:1 --rollout-num-gpus 3 --rollout-num-gpus-per-engine 3",
            "an engine takes whole machines or a number that divides --num-gpus-per-node 8",
        ),
        ("--num-gpus-per-node 4", "--actor-num-gpus-per-node 8 is more than a node has (--num-gpus-per-node 4)"),
        ("--people-in-memory 4", "no effect without --adapter-per-person"),
        ("--adapter-per-person", "--adapter-per-person needs --use-lora; add it"),
        ("--use-lora --adapter-per-person --update-weight-mode full", "use --update-weight-mode adapter"),
        ("--use-lora --adapter-per-person --people-in-memory -1", "--people-in-memory -1: give 0 or more"),
        ("--use-lora --adapter-per-person --lr-decay-style cosine", "add --lr-decay-iters N"),
        ("--use-lora --adapter-per-person --update-weights-interval 2", "remove --update-weights-interval"),
        ("--use-lora --adapter-per-person --save-hf x{rollout_id}", "remove --save-hf"),
        ("--use-lora --adapter-per-person --save x --save-interval 2", "before it serves; use --save-interval 1"),
        (
            "--use-lora --adapter-per-person --rollout-external-engine-addrs a:1",
            "remove --rollout-external-engine-addrs",
        ),
        ("--use-lora --adapter-per-person --check-weight-update-equal", "remove --check-weight-update-equal"),
        ("--use-lora --adapter-per-person --before-push-path a.b --canary-engine", "remove --canary-engine"),
        ("--use-lora --adapter-per-person --optimizer-cpu-offload", "cannot copy the state of --optimizer-cpu-offload"),
        ("--optimizer sgd", "--optimizer: 'sgd' is not one of adam"),
    ],
)
def test_flags_of_the_trainer_that_cannot_work(
    base: list[str], capsys: pytest.CaptureFixture[str], words: str, says: str
) -> None:
    assert says in refusal(capsys, [*base, *words.split()])


def test_other_spellings_of_a_flag(base: list[str]) -> None:
    assert parse_args([*base, "--warmup-ratio", "0.03"]).lr_warmup_fraction == 0.03
    assert parse_args([*base, "--dynamic_history"]).dynamic_history is True
    assert parse_args([*base, "--offload-optimizer-state"]).fsdp_cpu_offload is True
    assert parse_args([*base, "--resume-from-checkpoint", base[1]]).load == base[1]
    words = [*base, "--load", base[1]]
    assert parse_args([*words, "--use-checkpoint-opt_param-scheduler"]).use_checkpoint_lr_scheduler is True
    assert parse_args([*words, "--override-opt_param-scheduler"]).override_lr_scheduler is True


def test_environment_flags_reach_the_plugin(base: list[str]) -> None:
    given = {
        "--prm-step-coef": 0.5,
        "--prm-sglang-url": "http://judge:1",
    }
    assert set(given) == {option.flag for option in ENVIRONMENTS.options}
    words = [word for flag, value in given.items() for word in (flag, str(value))]
    args = parse_args([*base, *words, "--custom-generate-function-path", "generate_with_gui.generate"])
    assert {option.flag: getattr(args, option.attribute) for option in ENVIRONMENTS.options} == given


def test_external_engines_are_counted_and_exclude_own_ones(base: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = [*base, "--rollout-external", "--rollout-external-engine-addrs", "10.0.0.1:3000", "10.0.0.2:3000"]
    assert parse_args(words).rollout_num_gpus == 2
    assert "needs --rollout-external-engine-addrs" in refusal(capsys, [*base, "--rollout-external"])
    assert parse_args([*base, "--no-use-fault-tolerance"]).use_fault_tolerance is False


def test_what_evaluation_may_change(base: list[str]) -> None:
    words = [*base, "--rollout-max-response-len", "64", "--input-key", "q"]
    args = parse_args(words)
    assert (args.eval_input_key, args.eval_label_key, args.eval_top_k) == ("q", None, -1)
    own = "--eval-input-key i --eval-label-key l --eval-top-k 5"
    evaluates = ["--eval-function-path", "my.evaluate"]
    args = parse_args([*words, *evaluates, *own.split()])
    assert (args.eval_input_key, args.eval_label_key, args.eval_top_k) == ("i", "l", 5)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--prm-num-gpus 2", "--prm-num-gpus has no effect without a judge: add --prm-enable"),
        ("--prm-m 3 --prm-temperature 0.5", "--prm-m, --prm-temperature has no effect without a judge"),
        ("--prm-model-path .", "--prm-model-path has no effect without a judge"),
        (
            "--prm-max-new-tokens 9 --prm-num-gpus-per-engine 2",
            "--prm-num-gpus-per-engine, --prm-max-new-tokens has no",
        ),
        ("--max-tokens-per-gpu 64", "--max-tokens-per-gpu has no effect without --use-dynamic-batch-size"),
        ("--use-dynamic-batch-size --max-tokens-per-gpu 64 --micro-batch-size 2", "use --max-tokens-per-gpu"),
        (
            "--megatron-to-hf-mode raw",
            "--megatron-to-hf-mode raw: weights are read from and written to Hugging Face folders",
        ),
        ("--eval-input-key q --eval-top-k 3", "--eval-input-key, --eval-top-k has no effect without evaluation"),
        ("--eval-label-key q --eval-tool-key t", "--eval-label-key, --eval-tool-key has no effect without evaluation"),
        ("--eval-reward-key acc --eval-min-new-tokens 1", "--eval-reward-key, --eval-min-new-tokens has no effect"),
        ("--eval-max-context-len 9 --eval-max-prompt-len 8", "--eval-max-context-len, --eval-max-prompt-len has no"),
        ("--custom-eval-rollout-log-function-path a.b", "has no effect without evaluation: add --eval-interval"),
        ("--sglang-dtype bfloat16", "--sglang-dtype has no effect on a CPU"),
        ("--sglang-pp-size 2", "--sglang-pp-size has no effect on a CPU"),
        ("--sglang-attention-backend fa3 --sglang-device cuda", "--sglang-attention-backend has no effect on a CPU"),
    ],
)
def test_what_nothing_would_read_is_refused(
    base: list[str], capsys: pytest.CaptureFixture[str], words: str, says: str
) -> None:
    assert says in refusal(capsys, [*base, *words.split()])


def test_a_value_that_is_the_default_is_not_given(base: list[str]) -> None:
    defaults = "--prm-num-gpus 0 --prm-m 4 --prm-temperature 1.0 --micro-batch-size 1 --lora-rank 8 --lora-alpha 16"
    assert parse_args([*base, *defaults.split()]).prm_m == 4


def test_evaluation_flags_that_scripts_give_without_evaluating_are_accepted(base: list[str]) -> None:
    words = "--n-samples-per-eval-prompt 16 --eval-max-response-len 16384 --eval-top-p 1 --eval-temperature 0"
    args = parse_args([*base, *words.split()])
    assert (args.n_samples_per_eval_prompt, args.eval_max_response_len, args.eval_datasets) == (16, 16384, [])


def test_a_judge_that_runs_already_takes_no_gpu(base: list[str]) -> None:
    words = "--prm-router-ip 127.0.0.1 --prm-router-port 1 --prm-m 3 --prm-enable --prm-num-gpus 2"
    args = parse_args([*base, *words.split()])
    assert (args.prm_num_gpus, args.prm_m) == (0, 3)
