"""Flags of rollouts, prompt data, batches, engines of the judge, and agent loops; with their checks."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping

from slime.args import Arguments
from slime.arguments.option import Group, Option, flag_of, json_object
from slime.arguments.placement import is_rented
from slime.utils.model_config import config_or_none, context_limit
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
        Option("--rm-type", "built-in grader to use instead of a reward function, see rollouts.md"),
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
        Option("--n-samples-per-prompt", "samples per group", int, 1, aliases=("--num-rollouts-per-prompt",)),
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
        Option("--num-epoch", "length of the run in epochs, instead of --num-rollout", int, aliases=("--num-epochs",)),
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
            "YAML file of evaluation sets with their own sampling and graders, see rollouts.md",
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

# Attributes that must be 1 or more; None: not given.
_COUNTS = (
    "rollout_batch_size",
    "n_samples_per_prompt",
    "n_samples_per_eval_prompt",
    "over_sampling_batch_size",
    "global_batch_size",
    "num_steps_per_rollout",
    "micro_batch_size",
    "max_tokens_per_gpu",
    "num_epoch",
    "save_interval",
    "eval_interval",
    "rollout_max_response_len",
    "rollout_max_context_len",
    "rollout_max_prompt_len",
    "num_gpus_per_node",
    "rollout_num_gpus_per_engine",
    "prm_num_gpus_per_engine",
    "prm_m",
    "sglang_server_concurrency",
    "update_weight_buffer_size",
    "lora_rank",
    "memory_snapshot_num_steps",
    "expert_tensor_parallel_size",
    "recompute_num_layers",
)
# Attributes that must be 0 or more.
_COUNTS_FROM_NONE = ("num_rollout", "rollout_num_gpus", "prm_num_gpus")
# The core's rollout functions that use the run's sampling parameters.
_GENERATING = (
    "slime.rollout.sglang_rollout.generate_rollout",
    "slime.rollout.fully_async_rollout.generate_rollout_fully_async",
)


def check_counts(args: Arguments) -> list[str]:
    """Return one line per count that is too small; pass ``args`` before derivation."""
    given = [(flag_of(name), getattr(args, name)) for name in _COUNTS]
    problems = [f"{flag} {value}: give 1 or more" for flag, value in given if value is not None and value < 1]
    counts = [(flag_of(name), getattr(args, name)) for name in _COUNTS_FROM_NONE]
    problems += [f"{flag} {value}: give 0 or more" for flag, value in counts if value is not None and value < 0]
    if args.log_probs_chunk_size < 1 and args.log_probs_chunk_size != -1:
        problems.append(f"--log-probs-chunk-size {args.log_probs_chunk_size}: give 1 or more, or -1 for all at once")
    return problems


def check_lengths(args: Arguments) -> list[str]:
    """Return one line per length bound that is missing or leaves no room; pass derived ``args``."""
    problems = []
    longest, context = args.rollout_max_response_len, args.rollout_max_context_len
    if longest and context and longest >= context:
        problems.append(
            f"--rollout-max-response-len {longest} leaves no room for a prompt in --rollout-max-context-len {context}"
        )
    for kind in ("rollout", "eval"):
        prompt, context = getattr(args, f"{kind}_max_prompt_len"), getattr(args, f"{kind}_max_context_len")
        if prompt and context and prompt >= context:
            problems.append(
                f"--{kind}-max-prompt-len {prompt} leaves no room for a response in --{kind}-max-context-len {context}"
            )
    if longest is None and _generates(args):
        problems.append("no maximum response length: add --rollout-max-response-len N")
    return problems


def _generates(args: Arguments) -> bool:
    """Whether the core's own generation function answers prompts in this run."""
    replayed = args.debug_train_only or args.load_debug_rollout_data
    own = args.rollout_function_path in _GENERATING and not args.custom_generate_function_path
    return bool(own and args.prompt_data and not replayed)


def check_steps(args: Arguments) -> list[str]:
    """Return the problem with how a rollout splits into optimizer steps; pass ``args`` before derivation."""
    steps, batch = args.num_steps_per_rollout, args.global_batch_size
    if args.rollout_batch_size is None:
        return []
    samples = args.rollout_batch_size * args.n_samples_per_prompt
    product = f"--rollout-batch-size {args.rollout_batch_size} x --n-samples-per-prompt {args.n_samples_per_prompt} = {samples} samples"
    if steps and batch:
        wrong = steps * batch != samples
        return [f"{product} are not {steps} steps of --global-batch-size {batch}; remove one of the two"] * wrong
    flag, value = ("--num-steps-per-rollout", steps) if steps else ("--global-batch-size", batch or samples)
    return [f"{flag} {value} does not divide {product}; give a divisor of {samples}"] * bool(samples % value)


def check_batches(args: Arguments) -> list[str]:
    """Return the problems, one line each."""
    problems = []
    if args.rollout_batch_size is None:
        problems.append("no batch size: add --rollout-batch-size N")
        return problems
    if args.num_rollout is None and args.num_epoch is None:
        problems.append("no length of the run: add --num-rollout N (or --num-epoch with --prompt-data)")
    if args.num_epoch is not None and not args.prompt_data:
        problems.append("--num-epoch needs --prompt-data")
    if args.use_dynamic_batch_size and not args.max_tokens_per_gpu:
        problems.append("--use-dynamic-batch-size needs --max-tokens-per-gpu N")
    if args.max_tokens_per_gpu and not args.use_dynamic_batch_size:
        problems.append("--max-tokens-per-gpu has no effect without --use-dynamic-batch-size; add it")
    if args.micro_batch_size != 1 and args.use_dynamic_batch_size:
        problems.append("--micro-batch-size has no effect with --use-dynamic-batch-size; use --max-tokens-per-gpu")
    if args.over_sampling_batch_size < args.rollout_batch_size:
        problems.append("--over-sampling-batch-size is smaller than --rollout-batch-size; raise it, or remove it")
    if args.mask_offpolicy_in_partial_rollout and not args.partial_rollout:
        problems.append("--mask-offpolicy-in-partial-rollout has no effect without --partial-rollout; add it")
    if args.update_weights_interval < 1:
        problems.append(f"--update-weights-interval {args.update_weights_interval}: give 1 or more")
    own_prompts = (
        args.data_source_path == DEFAULT_DATA_SOURCE
    )  # scripts with their own data source give an interval but no set
    same_function = args.eval_function_path == args.rollout_function_path
    if args.eval_interval and not args.eval_datasets and same_function and own_prompts:
        problems.append(
            "--eval-interval needs --eval-prompt-data NAME PATH, --eval-config FILE or --eval-function-path"
        )
    return problems


def check_staleness(args: Arguments) -> list[str]:
    """Return the problems, one line each."""
    problems = []
    if args.max_weight_staleness is not None and args.max_weight_staleness < 0:
        problems.append(
            f"--max-weight-staleness {args.max_weight_staleness}: give 0 or more, or remove it for no bound"
        )
    if args.stale_samples != "drop" and args.max_weight_staleness is None:
        problems.append(f"--stale-samples {args.stale_samples} has no effect without --max-weight-staleness N; add it")
    if args.stale_samples == "correct" and not (args.use_tis or args.use_rollout_logprobs):
        problems.append(
            "--stale-samples correct needs a loss that uses the sampling policy: add --use-tis, or --use-rollout-logprobs "
            "(the clipped ratio is then relative to the weights that sampled)"
        )
    return problems


JUDGE = Group(
    "judge",
    (
        Option("--prm-enable", "start judge engines; the other --prm-* flags need this or --prm-router-ip", bool),
        Option("--prm-num-gpus", "GPUs of the judge engines", int, 0),
        Option("--prm-num-gpus-per-engine", "GPUs per judge engine", int, 1),
        Option(
            "--prm-model-path",
            "judge weights, or those of the reward model of --custom-rm-path; default: --hf-checkpoint",
            aliases=("--rm-checkpoint",),
        ),
        Option("--prm-m", "votes per turn", int, 4, aliases=("--majority-vote-n",)),
        Option("--prm-temperature", "sampling temperature of the judge", float, 1.0),
        Option("--prm-max-new-tokens", "maximum length of a judge's answer in tokens", int, 2048),
        Option("--prm-router-ip", "address of a running judge; --prm-num-gpus then counts as 0"),
        Option("--prm-router-port", "its port", int),
    ),
)


def check_judge(args: Arguments) -> list[str]:
    """Return the problems, one line each; pass ``args`` before derivation."""
    if bool(args.prm_router_ip) != bool(args.prm_router_port):
        return ["--prm-router-ip and --prm-router-port go together; give both"]
    # A plugin may call a judge at --prm-sglang-url with these sampling flags.
    if not (args.prm_enable or args.prm_router_ip or args.prm_sglang_url):
        given = [option.flag for option in JUDGE.options if option.is_given(args)]
        if args.custom_rm_path and "--prm-model-path" in given:
            given.remove("--prm-model-path")  # the checkpoint of a reward model
        return [f"{', '.join(given)} has no effect without a judge: add --prm-enable, or remove it"] if given else []
    problems = []
    total, size = args.prm_num_gpus, args.prm_num_gpus_per_engine
    if total % size:
        problems.append(f"--prm-num-gpus {total} is not a multiple of --prm-num-gpus-per-engine {size}")
    if args.prm_enable and total < 1 and not args.prm_router_ip and not is_rented(args):
        problems.append("--prm-enable needs --prm-num-gpus 1 or more, or --prm-router-ip of a running judge")
    context = args.sglang_context_length or args.rollout_max_context_len
    if args.prm_enable and context and args.prm_max_new_tokens >= context:
        problems.append(
            f"--prm-max-new-tokens {args.prm_max_new_tokens} leaves no room for a prompt in the judge's context of {context}; "
            "lower it, or raise --sglang-context-length"
        )
    return problems


# Kernels and types that are fixed for an engine on a CPU; see CPU_OPTIONS in server_args.
_DECIDED_ON_CPU = (
    "sglang_device",
    "sglang_dtype",
    "sglang_attention_backend",
    "sglang_sampling_backend",
    "sglang_pp_size",
    "sglang_pipeline_parallel_size",
)
# These make a server require a key or TLS, which the run's own calls to its engines do not use.
_LOCKED = ("sglang_api_key", "sglang_admin_api_key", "sglang_ssl_certfile", "sglang_ssl_keyfile")


def check_engines(args: Arguments) -> list[str]:
    """Return the problems, one line each."""
    return [*_check_running(args), *_check_device(args), *_check_locked(args)]


LENGTHS = {
    "sglang_context_length": 1,
    "rollout_max_context_len": 1,
    "rollout_max_response_len": 2,
    "prm_max_new_tokens": 2,
}
"""Arguments that have to fit into a model's context, each with its divisor: one that is too long may take that part of it."""

MODEL_OVERRIDE = "sglang_json_model_override_args"


def forces_context(environment: Mapping[str, str]) -> bool:
    """Return whether the user lets SGLang start with a longer context than the model states."""
    return environment.get("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "").lower() in ("1", "true", "yes", "y")


def check_context(args: Arguments, environment: Mapping[str, str]) -> list[str]:
    """Return one line per model whose context is shorter than its engines', which would end in a traceback."""
    tokens, running = args.sglang_context_length, args.rollout_external_engine_addrs or args.debug_train_only
    if tokens is None or running or forces_context(environment):
        return []
    given = getattr(args, MODEL_OVERRIDE)
    try:
        override = json.loads(given or "{}")
    except ValueError as error:
        return [f"{flag_of(MODEL_OVERRIDE)} {given} is not JSON: {error}"]
    judge = args.prm_model_path if args.prm_enable and not args.prm_router_ip else None
    limits: dict[str, int] = {}
    for folder in filter(None, dict.fromkeys((args.hf_checkpoint, judge))):
        limit = context_limit(config_or_none(folder), override)
        if limit is not None and tokens > limit:
            limits[folder] = limit
    if not limits:
        return []
    least = min(limits.values())
    kept = () if judge else ("prm_max_new_tokens",)
    too_long = {
        name: least // part
        for name, part in LENGTHS.items()
        if name not in kept and (getattr(args, name) or 0) >= least
    }
    typed = " ".join(f"{flag_of(name)} {value}" for name, value in too_long.items())
    return [
        f"--sglang-context-length {tokens} is more than the {limit} tokens that {folder}/config.json allows; write {typed}"
        for folder, limit in limits.items()
    ]


def _check_running(args: Arguments) -> list[str]:
    """Check flags of external engines and routers."""
    problems = []
    if args.sglang_router_ip and not args.sglang_router_port:
        problems.append("--sglang-router-ip needs --sglang-router-port, the router's port")
    external = args.rollout_external_engine_addrs or []
    if args.sglang_router_port and not args.sglang_router_ip and len(external) == 1 and args.router != "sglang":
        problems.append("--sglang-router-port has no effect on an external engine; remove it, or add --router sglang")
    if args.rollout_external and not external:
        problems.append("--rollout-external needs --rollout-external-engine-addrs HOST:PORT ...")
    if external and (args.debug_train_only or args.sglang_router_ip):
        other = "--sglang-router-ip" if args.sglang_router_ip else "--debug-train-only"
        problems.append(f"--rollout-external-engine-addrs contradicts {other}; remove one of them")
    return problems


def _check_device(args: Arguments) -> list[str]:
    problems = []
    if args.sglang_quantization and not (args.debug_rollout_only or args.debug_train_only):
        problems.append(
            f"--sglang-quantization {args.sglang_quantization}: an engine that quantised its weights at start-up cannot load "
            "the trainer's; use --sglang-kv-cache-dtype fp8_e4m3, or a judge in FP8 (--prm-model-path)"
        )
    if args.device == "cpu":
        problems += [
            f"{flag_of(name)} has no effect on a CPU, where it is fixed; remove it"
            for name in _DECIDED_ON_CPU
            if getattr(args, name) is not None
        ]
    return problems


def _check_locked(args: Arguments) -> list[str]:
    return [
        f"{flag_of(name)}: the run calls its engines without a key and without TLS; remove it; "
        "protect clients at the gateway with OPENCLAW_API_KEY and OPENCLAW_TLS_CERT"
        for name in _LOCKED
        if getattr(args, name)
    ]


ENVIRONMENTS = Group(
    "environments (read by the plugins of agent folders)",
    (
        Option("--prm-step-coef", "weight of the judge's step score in the reward", float, 1.0),
        Option("--prm-sglang-url", "URL of a running judge that agent loops ask instead of engines of the run"),
    ),
)
PLUGIN_FLAGS = (
    "rollout_function_path",
    "eval_function_path",
    "custom_generate_function_path",
    "custom_rm_path",
    "data_source_path",
    "custom_reward_post_process_path",
)
_OWN_CODE = ("slime.", "openclaw.")


def check_environments(args: Arguments) -> list[str]:
    """Return one line per environment flag if no plugin of a method folder is named."""
    paths = [getattr(args, name) or "" for name in PLUGIN_FLAGS]
    if any(path and not path.startswith(_OWN_CODE) for path in paths):
        return []
    return [
        f"{option.flag} is read only by a method folder's plugin, and none is named; add --custom-generate-function-path"
        for option in ENVIRONMENTS.options
        if option.is_given(args)
    ]
