"""Flags of the algorithms: what works together parses, what would have no effect is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.algorithms.advantages import ESTIMATORS as KNOWN
from slime.arguments import parse_args
from slime.arguments.algorithm import ESTIMATORS
from slime.arguments.parser import parser_for, read_arguments
from slime.rollout.rewards import GROUP_RELATIVE
from tests.helpers.checkpoints import config_only, published

WHITE = "--advantage-estimator reinforce_plus_plus --normalize-advantages"
PPO = "--advantage-estimator ppo"
MISMATCH = "--custom-tis-function-path a.b"


@pytest.fixture
def base(tmp_path: Path) -> list[str]:
    """The shortest command line that is valid."""
    return (
        f"--hf-checkpoint {config_only(tmp_path / 'model')} --rollout-batch-size 4 --num-rollout 1 --device cpu".split()
    )


def test_the_command_line_offers_every_estimator() -> None:
    assert set(ESTIMATORS) == set(KNOWN)
    from slime.arguments.algorithm import GROUP_STANDARDISED

    assert set(GROUP_STANDARDISED) == set(GROUP_RELATIVE)


@pytest.mark.parametrize(
    "words",
    [
        "--advantage-estimator gspo --eps-clip 3e-4 --eps-clip-high 4e-4 --eps-clip-c 3",
        "--advantage-estimator cispo --eps-clip 1.0 --disable-grpo-std-normalization",
        f"{WHITE} --gamma 0.99 --kl-coef 0.01 --kl-loss-type k2",
        "--advantage-estimator reinforce_plus_plus_baseline --normalize-advantages --kl-coef 0.01",
        "--advantage-estimator step_wise --dynamic_history",
        "--custom-advantage-function-path a.b --kl-coef 0.1 --gamma 0.9",
        "--use-kl-loss --kl-loss-coef 0.1 --use-unbiased-kl --use-opsm --opsm-delta 1e-3",
        f"--use-tis --tis-clip 5 --tis-clip-low 0.5 {MISMATCH}",
        f"--get-mismatch-metrics --tis-clip 5 {MISMATCH}",
        "--custom-pg-loss-reducer-function-path slime.algorithms.losses.reduce.constant_denominator"
        " --rollout-max-response-len 64",
        f"{PPO} --gamma 0.99 --lambd 0.95 --value-clip 0.2 --kl-coef 0.01 --critic-lr 1e-5 --normalize-advantages",
        f"{PPO} --num-critic-only-steps 5 --critic-lr-warmup-iters 3 --critic-num-gpus-per-node 2 --critic-num-nodes 1",
        "--distill-topk 50 --loss-type custom_loss --custom-loss-function-path a.b --disable-compute-advantages-and-returns",
        "--loss-type sft_loss --disable-compute-advantages-and-returns --calculate-per-token-loss",
        "--loss-type custom_loss --custom-loss-function-path a.b --tis-clip 3 --disable-compute-advantages-and-returns",
    ],
)
def test_what_works_together_parses(base: list[str], words: str) -> None:
    assert parse_args([*base, *words.split()]).rollout_batch_size == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--advantage-estimator reinforce_plus_plus", "add --normalize-advantages"),
        ("--advantage-estimator reinforce_plus_plus_baseline", "add --normalize-advantages"),
        ("--kl-coef 0.1", "--kl-coef has no effect with --advantage-estimator grpo; use --use-kl-loss"),
        (f"{WHITE} --kl-coef 0.1 --use-kl-loss --kl-loss-coef 0.1", "count the KL twice"),
        ("--use-kl-loss --kl-loss-coef 0.1", "k1 does not depend on the reference; use --kl-loss-type k3"),
        ("--gamma 0.9", "--gamma has no effect with --advantage-estimator grpo"),
        (f"{WHITE} --gamma 1.5", "give a discount between 0 and 1"),
        (
            "--advantage-estimator reinforce_plus_plus_baseline --normalize-advantages --disable-rewards-normalization",
            "use --advantage-estimator reinforce_plus_plus",
        ),
        (f"{WHITE} --disable-grpo-std-normalization", "--disable-grpo-std-normalization has no effect"),
        ("--advantage-estimator step_wise --normalize-advantages", "standardise the step advantages twice"),
        ("--eps-clip-c 0.9", "needs a value above 1"),
        ("--eps-clip-c 3 --advantage-estimator cispo", "--eps-clip-c has no effect with --advantage-estimator cispo"),
        ("--opsm-delta 0.1", "--opsm-delta has no effect without --use-opsm"),
        ("--tis-clip 3", "--tis-clip has no effect without --use-tis"),
        ("--use-tis --tis-clip 1 --tis-clip-low 2", "swap them"),
        ("--use-unbiased-kl", "--use-unbiased-kl has no effect without --use-kl-loss"),
        ("--opd-kl-coef 2", "--opd-kl-coef has no effect without --use-opd"),
        ("--opd-teacher prm", "--opd-teacher prm needs a judge: add --prm-enable"),
        (MISMATCH, "no effect without --use-tis or --get-mismatch-metrics"),
        ("--get-mismatch-metrics", "--get-mismatch-metrics needs --custom-tis-function-path"),
        (f"--get-mismatch-metrics --use-rollout-logprobs {MISMATCH}", "remove one of them"),
        (
            "--loss-type sft_loss --use-tis --entropy-coef 0.1",
            "--entropy-coef, --use-tis has no effect with --loss-type sft_loss",
        ),
        ("--loss-type policy_loss --custom-loss-function-path a.b", "no effect with --loss-type policy_loss"),
        ("--loss-type sft_loss --custom-loss-function-path a.b", "no effect with --loss-type sft_loss"),
        ("--disable-compute-advantages-and-returns", "leaves --loss-type policy_loss without advantages"),
        (
            "--loss-type custom_loss --custom-loss-function-path a.b --disable-compute-advantages-and-returns --use-kl-loss",
            "need the passes",
        ),
        (
            "--custom-pg-loss-reducer-function-path slime.algorithms.losses.reduce.constant_denominator"
            " --calculate-per-token-loss",
            "remove --calculate-per-token-loss",
        ),
        ("--distill-topk 50", "--distill-topk has no effect on a built-in loss; add --loss-type custom_loss"),
        ("--distill-topk -1", "--distill-topk -1: give 0 or more"),
        ("--critic-lr 1e-5", "--critic-lr has no effect without --advantage-estimator ppo"),
        ("--lambd 0.9 --value-clip 0.5", "--lambd, --value-clip has no effect without --advantage-estimator ppo"),
        (f"{PPO} --use-lora", "--use-lora cannot be combined with --advantage-estimator ppo"),
        (f"{PPO} --loss-type sft_loss", "--loss-type sft_loss does not support the critic"),
        (
            f"{PPO} --loss-type custom_loss --custom-loss-function-path a.b --disable-compute-advantages-and-returns",
            "--disable-compute-advantages-and-returns does not support the critic",
        ),
        (f"{PPO} --share-gpu", "--share-gpu leaves no GPU for the critic"),
        (f"{PPO} --lambd 1.1", "--lambd 1.1: give a number between 0 and 1"),
        (f"{PPO} --value-clip 0", "--value-clip 0.0: give a number above 0"),
        (f"{PPO} --critic-num-nodes 2", "several nodes (--critic-num-nodes) are not supported yet"),
        (f"{PPO} --critic-num-gpus-per-node 9", "--critic-num-gpus-per-node 9: give 1 to --num-gpus-per-node 8"),
        (f"{PPO} --num-gpus 9", "8 actor + 8 critic + 1 rollout + 0 judge GPUs are 17, but --num-gpus is 9"),
        (f"{PPO} --critic-save there", "--critic-save needs --save"),
        (f"{PPO} --save there --critic-save there", "is --save, where the policy's checkpoints go"),
        (f"{PPO} --critic-load /nowhere", "--critic-load /nowhere: neither a Hugging Face folder nor"),
    ],
)
def test_what_would_have_no_effect_is_refused(
    base: list[str], capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    with pytest.raises(SystemExit) as exit_:
        parse_args([*base, *words.split()])
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_the_critic_has_the_actors_layout_and_a_folder_in_save(base: list[str], tmp_path: Path) -> None:
    save = tmp_path / "save"
    args = parse_args([*base, *PPO.split(), "--actor-num-gpus-per-node", "2", "--save", str(save)])
    assert (args.critic_num_nodes, args.critic_num_gpus_per_node) == (1, 2)
    assert (args.critic_save, args.critic_load) == (str(save / "critic"), None)
    published(save, 3)
    published(save / "critic", 3)
    resumed = parse_args([*base, *PPO.split(), "--save", str(save), "--resume"])
    assert (resumed.critic_save, resumed.critic_load) == (str(save / "critic"), None)


GSPO, LORA = "--advantage-estimator gspo", "--use-lora --lr"
REJECTION = "--use-tis --custom-tis-function-path slime.algorithms.losses.rejection"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (f"{LORA} 1e-5", "--lr 1e-05 with --use-lora: an adapter needs about ten times the rate"),
        (f"{LORA} 1e-4", ""),
        ("--lr 1e-6", ""),
        (GSPO, "--eps-clip 0.2 with --advantage-estimator gspo hardly ever clips"),
        (f"{GSPO} --eps-clip 3e-4 --eps-clip-high 4e-4", ""),
        (f"{REJECTION}.icepop_function", "are never rejected; IcePop's paper has --tis-clip-low 0.5 --tis-clip 5"),
        (f"{REJECTION}.sequence_rejection", "are never rejected"),
        (f"{REJECTION}.icepop_function --tis-clip-low 0.5 --tis-clip 5", ""),
        ("--use-tis", ""),
    ],
)
@pytest.mark.parametrize("dry", [False, True])
def test_a_setting_that_hardly_works_is_warned_of(
    base: list[str], capsys: pytest.CaptureFixture[str], dry: bool, words: str, message: str
) -> None:
    words_of = [*base, *words.split()]
    if dry:
        with pytest.raises(SystemExit):
            parse_args([*words_of, "--prompt-data", __file__, "--rollout-max-response-len", "8", "--dry-run"])
    else:
        parse_args(words_of)
    shown = capsys.readouterr()
    found = [line for line in (shown.out + shown.err).splitlines() if line.startswith("warning: --")]
    assert len(found) == bool(message)
    assert message in "".join(found)


def test_the_path_of_a_loss_selects_it(base: list[str]) -> None:
    assert parse_args([*base, "--custom-loss-function-path", "a.b"]).loss_type == "custom_loss"
    assert (
        parse_args([*base, "--custom-loss-function-path", "a.b", "--loss-type=custom_loss"]).loss_type == "custom_loss"
    )
    assert parse_args(base).loss_type == "policy_loss"


def test_a_loss_that_asks_for_values_needs_what_computes_them(base: list[str], tmp_path: Path) -> None:
    file = tmp_path / "custom_loss.py"
    file.write_text("def compute_loss(policy_logits, reference_logits, advantages, config): ...\n")
    words = [*base, "--custom-loss-function-path", str(file)]
    without = "--disable-compute-advantages-and-returns"
    assert [line for line in problems_of([*words, without]) if "asks for advantages, reference_logits; remove" in line]
    parts = ["--train-backend", "megatron", "--context-parallel-size", "2"]
    assert [line for line in problems_of([*words, *parts]) if "the signature (policy_logits, " in line]
    assert not [line for line in problems_of(words) if "compute_loss" in line]


def test_a_reward_models_checkpoint_needs_no_judge(base: list[str]) -> None:
    given = [*base, "--custom-rm-path", "a.b", "--prm-model-path", "rm"]
    assert not [line for line in problems_of(given) if "judge" in line]
    assert [line for line in problems_of([*given, "--prm-m", "3"]) if line.startswith("--prm-m has no effect")]


def problems_of(words: list[str]) -> list[str]:
    """Return the problems of a command line."""
    parser = parser_for(words)
    return read_arguments(parser, words)[1]
