"""Flags of rollouts: which functions collect data, how much, and with which sampling."""

from __future__ import annotations

import argparse

from slime.arguments.option import Group, Option, json_object
from slime.utils.types import MultimodalTypes

OFFERED = MultimodalTypes.IMAGE.name


def media_columns(text: str) -> dict[str, str]:
    """Parse ``{"image": "images"}``.

    Raises:
        argparse.ArgumentTypeError: a kind is unknown or unsupported, or a column is not a name.
    """
    columns = json_object(text)
    known = [kind.name for kind in MultimodalTypes.all()]
    for kind, column in columns.items():
        if kind not in known:
            raise argparse.ArgumentTypeError(f"unknown kind of media {kind!r}; known are {', '.join(known)}")
        if kind != OFFERED:
            raise argparse.ArgumentTypeError(f"no back end trains on {kind}; only {OFFERED} is supported")
        if not isinstance(column, str) or not column:
            raise argparse.ArgumentTypeError(f"{kind!r} needs a column name, got {column!r}")
    if not columns:
        raise argparse.ArgumentTypeError(f'has no column; write it like \'{{"{OFFERED}": "images"}}\'')
    return columns


DEFAULT_DATA_SOURCE = "slime.rollout.data_source.RolloutDataSourceWithBuffer"
_UNUSED = "not used without --eval-interval"

ROLLOUT = Group(
    "rollout",
    (
        Option("--rollout-function-path", "rollout function", str, "slime.rollout.sglang_rollout.generate_rollout"),
        Option("--eval-function-path", "evaluation function; default: the rollout function"),
        Option("--custom-generate-function-path", "function that generates one sample"),
        Option("--custom-rm-path", "reward function"),
        Option("--rm-type", "built-in grader to use instead of a reward function, see rewards_and_evaluation.md"),
        Option("--rm-url", "address of the reward server for --rm-type remote_rm"),
        Option("--group-rm", "the reward function scores whole groups", bool),
        Option("--data-source-path", "data source class", str, DEFAULT_DATA_SOURCE),
        Option("--buffer-filter-path", "function that picks groups from the data source's buffer"),
        Option("--rollout-sample-filter-path", "function that marks samples of a finished rollout for removal"),
        Option(
            "--rollout-all-samples-process-path",
            "function called with all finished groups of a rollout, including dropped ones",
        ),
        Option(
            "--rollout-sample-hook-path",
            "function called with every answered sample before scoring; repeatable",
            repeat=True,
        ),
        Option("--dynamic-sampling-filter-path", "function that keeps or drops a finished group"),
        Option("--custom-reward-post-process-path", "function that replaces reward normalisation"),
        Option("--custom-convert-samples-to-train-data-path", "function that replaces the conversion of samples"),
        Option(
            "--rollout-data-postprocess-path",
            "function called with a training rank's data after logprobs and advantages",
        ),
        Option("--custom-rollout-log-function-path", "function that logs a rollout"),
        Option("--custom-eval-rollout-log-function-path", "function that logs an evaluation"),
        Option("--num-rollout", "rollouts to collect and train on", int),
        Option("--serve-when-done", "keep serving after the last rollout until SIGINT or SIGTERM", bool),
        Option("--rollout-batch-size", "groups per rollout", int),
        Option("--n-samples-per-prompt", "samples per group", int, 1),
        Option("--over-sampling-batch-size", "groups requested at a time; default: --rollout-batch-size", int),
        Option(
            "--partial-rollout", "return aborted groups to the data source and continue them in a later rollout", bool
        ),
        Option(
            "--mask-offpolicy-in-partial-rollout",
            "no loss on a continued sample's tokens from before the weight update",
            bool,
        ),
        Option("--rollout-temperature", "sampling temperature, and divisor of the training logits", float, 1.0),
        Option("--rollout-top-p", "nucleus bound", float, 1.0),
        Option("--rollout-top-k", "top-k bound; -1: off", int, -1),
        Option("--rollout-max-response-len", "longest response in tokens", int),
        Option("--rollout-max-context-len", "longest prompt and response together", int),
        Option("--rollout-max-prompt-len", "longest prompt; default: context minus one", int),
        Option("--rollout-stop", "stop strings", str, None, nargs="+"),
        Option("--rollout-stop-token-ids", "stop token ids", int, None, nargs="+"),
        Option("--rollout-skip-special-tokens", "leave special tokens out of response texts", bool),
        Option("--rollout-seed", "seed of the data source", int, 42),
        Option("--rollout-external", "use the running policy engines at --rollout-external-engine-addrs", bool),
        Option(
            "--rollout-external-engine-addrs",
            "HOST:PORT of each external engine; the run only pushes weights to them",
            nargs="+",
        ),
        Option(
            "--use-fault-tolerance",
            "restart engines that died or hang; on unless --no-use-fault-tolerance",
            bool,
            True,
        ),
        Option(
            "--rollout-health-check-interval",
            "seconds between health checks of the engines; small, so that a dead engine is replaced soon",
            float,
            5.0,
        ),
        Option(
            "--rollout-health-check-timeout",
            "seconds of failing checks after which an engine counts as hung",
            float,
            30.0,
        ),
        Option("--rollout-health-check-first-wait", "grace period after an engine's start, in seconds", float, 0.0),
        Option(
            "--max-weight-staleness",
            "a sample is stale if its weights are more than this many updates behind the live ones",
            int,
        ),
        Option(
            "--stale-samples",
            "drop and count stale samples, train only their tokens of newer weights (mask), or all with importance weights",
            str,
            "drop",
            ("drop", "mask", "correct"),
        ),
        Option("--update-weights-interval", "rollouts between weight pushes; the last rollout always pushes", int, 1),
    ),
)

DATA = Group(
    "prompt data",
    (
        Option("--disable-rollout-global-dataset", "run without a prompt file", None, off="rollout_global_dataset"),
        Option("--prompt-data", "jsonl or parquet file, optional @[a:b] slice"),
        Option("--input-key", "prompt column", str, "input"),
        Option("--label-key", "label column"),
        Option("--metadata-key", "metadata column", str, "metadata"),
        Option("--tool-key", "tools column", str, "tools"),
        Option(
            "--multimodal-keys", 'JSON object that names the column of pictures: \'{"image": "images"}\'', media_columns
        ),
        Option(
            "--loss-mask-type",
            "chat template for supervised fine-tuning",
            str,
            "qwen",
            ("qwen", "qwen3", "distill_qwen", "qwen3_5"),
        ),
        Option("--apply-chat-template", "render prompts with the chat template when loading", bool),
        Option("--apply-chat-template-kwargs", "JSON object of arguments for the template", json_object, {}),
        Option("--rollout-shuffle", "shuffle prompts each epoch", bool),
        Option("--num-epoch", "length of the run in epochs, instead of --num-rollout", int),
    ),
)

EVALUATION = Group(
    "evaluation",
    (
        Option("--eval-interval", "rollouts between evaluations; also evaluates the start weights", int),
        Option("--skip-eval-before-train", "do not evaluate the start weights", bool),
        Option("--eval-prompt-data", "pairs: name path", str, None, nargs="+"),
        Option(
            "--eval-config",
            "YAML file of evaluation sets with their own sampling and graders, see rewards_and_evaluation.md",
        ),
        Option("--eval-input-key", "prompt column; default: --input-key"),
        Option("--eval-label-key", "label column; default: --label-key"),
        Option("--eval-tool-key", "tools column; default: --tool-key"),
        Option("--eval-reward-key", "key of a reward dict; default: --reward-key"),
        Option("--n-samples-per-eval-prompt", f"samples per prompt; {_UNUSED}", int, 1),
        Option("--eval-temperature", f"sampling temperature; default: --rollout-temperature; {_UNUSED}", float),
        Option("--eval-top-p", f"nucleus bound; default: --rollout-top-p; {_UNUSED}", float),
        Option("--eval-top-k", "top-k bound; default: --rollout-top-k", int),
        Option("--eval-max-response-len", f"longest response; default: --rollout-max-response-len; {_UNUSED}", int),
        Option("--eval-max-context-len", "longest prompt and response; default: --rollout-max-context-len", int),
        Option("--eval-max-prompt-len", "longer prompts are left out; default: context minus one", int),
        Option("--eval-min-new-tokens", "shortest response in tokens", int),
    ),
)
