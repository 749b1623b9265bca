"""Rollouts: which functions collect data, how much, with which sampling."""

from __future__ import annotations

import argparse

from slime.arguments.option import Group, Option, json_object
from slime.utils.types import MultimodalTypes

OFFERED = MultimodalTypes.IMAGE.name


def media_columns(text: str) -> dict[str, str]:
    """Parse ``{"image": "images"}``.

    Raises:
        argparse.ArgumentTypeError: for a kind that is not known or not offered, and a column that is no name.
    """
    columns = json_object(text)
    known = [kind.name for kind in MultimodalTypes.all()]
    for kind, column in columns.items():
        if kind not in known:
            raise argparse.ArgumentTypeError(f"unknown kind of media {kind!r}; known are {', '.join(known)}")
        if kind != OFFERED:
            raise argparse.ArgumentTypeError(f"no back end trains on {kind}; only {OFFERED} is offered")
        if not isinstance(column, str) or not column:
            raise argparse.ArgumentTypeError(f"{kind!r} needs the name of a column, got {column!r}")
    if not columns:
        raise argparse.ArgumentTypeError(f'names no column; write it like \'{{"{OFFERED}": "images"}}\'')
    return columns


DEFAULT_DATA_SOURCE = "slime.rollout.data_source.RolloutDataSourceWithBuffer"
_UNUSED = "not used without --eval-interval"

ROLLOUT = Group(
    "rollout",
    (
        Option("--rollout-function-path", "rollout function", str, "slime.rollout.sglang_rollout.generate_rollout"),
        Option("--eval-function-path", "evaluation function; default: the rollout function"),
        Option("--custom-generate-function-path", "generation of one sample"),
        Option("--custom-rm-path", "reward function"),
        Option("--rm-type", "grader of the core in place of a reward function, see rewards_and_evaluation.md"),
        Option("--rm-url", "address of the reward server for --rm-type remote_rm"),
        Option("--group-rm", "the reward function scores whole groups", bool),
        Option("--data-source-path", "data source class", str, DEFAULT_DATA_SOURCE),
        Option("--buffer-filter-path", "picks groups out of the data source's buffer"),
        Option("--rollout-sample-filter-path", "marks samples of a finished rollout for removal"),
        Option("--rollout-all-samples-process-path", "sees all finished groups of a rollout, the dropped ones too"),
        Option("--rollout-sample-hook-path", "sees every answered sample before it is scored; repeatable", repeat=True),
        Option("--dynamic-sampling-filter-path", "keeps or drops a finished group"),
        Option("--custom-reward-post-process-path", "replaces reward normalisation"),
        Option("--custom-convert-samples-to-train-data-path", "replaces the conversion of samples"),
        Option("--rollout-data-postprocess-path", "sees a training rank's data after logprobs and advantages"),
        Option("--custom-rollout-log-function-path", "logs a rollout"),
        Option("--custom-eval-rollout-log-function-path", "logs an evaluation"),
        Option("--num-rollout", "rollouts to collect and train on", int),
        Option("--serve-when-done", "after the last rollout keep serving until SIGINT or SIGTERM", bool),
        Option("--rollout-batch-size", "groups per rollout", int),
        Option("--n-samples-per-prompt", "samples per group", int, 1),
        Option("--over-sampling-batch-size", "groups asked for at a time; default: --rollout-batch-size", int),
        Option("--partial-rollout", "aborted groups go back to the data source and go on where they stopped", bool),
        Option(
            "--mask-offpolicy-in-partial-rollout",
            "no loss on tokens of older weights in a sample that newer ones went on with",
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
        Option("--rollout-skip-special-tokens", "leave special tokens out of responses' text", bool),
        Option("--rollout-seed", "seed of the data source", int, 42),
        Option("--rollout-external", "the policy engines run already, at --rollout-external-engine-addrs", bool),
        Option("--rollout-external-engine-addrs", "their host:port; they get the weights, and nothing else", nargs="+"),
        Option(
            "--use-fault-tolerance",
            "restart engines that died or hang; on unless --no-use-fault-tolerance",
            bool,
            True,
        ),
        Option(
            "--rollout-health-check-interval",
            "seconds between health checks of the engines; few, so that a dead one is soon replaced",
            float,
            5.0,
        ),
        Option(
            "--rollout-health-check-timeout", "an engine that is unhealthy for this many seconds hangs", float, 30.0
        ),
        Option(
            "--rollout-health-check-first-wait", "seconds after its start in which an engine may be silent", float, 0.0
        ),
        Option(
            "--max-weight-staleness",
            "a sample is stale when its weights are more than this many updates behind the live ones",
            int,
        ),
        Option(
            "--stale-samples",
            "stale samples are dropped and counted, or trained with importance weights",
            str,
            "drop",
            ("drop", "correct"),
        ),
        Option("--update-weights-interval", "rollouts between weight pushes; the last one is always pushed", int, 1),
    ),
)

DATA = Group(
    "prompt data",
    (
        Option("--disable-rollout-global-dataset", "no prompt file", None, off="rollout_global_dataset"),
        Option("--prompt-data", "jsonl or parquet file, optional @[a:b] slice"),
        Option("--input-key", "prompt column", str, "input"),
        Option("--label-key", "label column"),
        Option("--metadata-key", "metadata column", str, "metadata"),
        Option("--tool-key", "tools column", str, "tools"),
        Option("--multimodal-keys", 'JSON object, column of the pictures: \'{"image": "images"}\'', media_columns),
        Option(
            "--loss-mask-type",
            "chat template of supervised fine-tuning",
            str,
            "qwen",
            ("qwen", "qwen3", "distill_qwen", "qwen3_5"),
        ),
        Option("--apply-chat-template", "render prompts with the chat template when loading", bool),
        Option("--apply-chat-template-kwargs", "JSON object for the template", json_object, {}),
        Option("--rollout-shuffle", "shuffle prompts each epoch", bool),
        Option("--num-epoch", "epochs instead of --num-rollout", int),
    ),
)

EVALUATION = Group(
    "evaluation",
    (
        Option("--eval-interval", "rollouts between evaluations; the start weights are evaluated too", int),
        Option("--skip-eval-before-train", "do not evaluate the start weights", bool),
        Option("--eval-prompt-data", "pairs: name path", str, None, nargs="+"),
        Option(
            "--eval-config",
            "YAML with evaluation sets and their own sampling and graders, see rewards_and_evaluation.md",
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
