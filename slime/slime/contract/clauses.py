"""The clauses that each kind of plugin must keep, and the error that names a broken clause.

A plugin must be callable as the core calls it; its result is awaited without an event loop.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from slime.arguments.option import flag_of
from slime.arguments.plugin_forms import FormError
from slime.exceptions import SlimeError
from slime.utils.async_utils import run


@dataclass(frozen=True)
class Kind:
    """A kind of plugin: the trainer's option that names it, when it is called, and its clauses in order."""

    option: str
    called: str
    clauses: tuple[str, ...]

    @property
    def flag(self) -> str:
        """Return the flag as typed on the command line."""
        return flag_of(self.option)


SYNCHRONOUS = "is synchronous: it returns its result, not a coroutine"
RUNS = "runs in the stand-in surroundings without an exception"

KINDS: dict[str, Kind] = {
    "rollout": Kind(
        "rollout_function_path",
        "once per rollout, in the rollout manager, which loads it at the start",
        (
            "is called as fn(args, rollout_id, data_source, evaluation=False)",
            SYNCHRONOUS,
            RUNS,
            "returns RolloutFnTrainOutput or a list of groups; lists may nest, and their leaves are samples",
            "returns at least one sample; each has tokens, and per-token lists as long as its response",
            "gives every sample a reward: a number, or a dict with the entry of --reward-key",
            "returns metrics that are None or a dict of numbers by name",
        ),
    ),
    "eval": Kind(
        "eval_function_path",
        "once per evaluation, in the rollout manager; default: the rollout function",
        (
            "is called as fn(args, rollout_id, data_source, evaluation=True)",
            SYNCHRONOUS,
            RUNS,
            'returns RolloutFnEvalOutput or {dataset: {"rewards": numbers, ...}}',
            'gives "truncated" and "samples", if present, one entry per reward',
            "returns metrics that are None or a dict of numbers by name",
        ),
    ),
    "generate": Kind(
        "custom_generate_function_path",
        "once per sample, inside the request limit of `generate_and_rm`",
        (
            "is called as fn(args, sample, sampling_params), with evaluation=... if it has that parameter; or plays an episode, as "
            "fn(agent_model, task_description)",
            "is asynchronous: async def",
            RUNS,
            "returns a sample or a list of samples",
            "returns samples whose tokens end with the response, and whose per-token lists are as long as the response",
            "sets the status: completed, truncated, aborted or failed",
            "returns samples with the group_index of the sample that it got",
            "returns, after an engine's abort, aborted samples without a reward, or removed samples with a reward",
        ),
    ),
    "reward": Kind(
        "custom_rm_path",
        "after generation: one sample, a list that a generate function returned, or a group with `--group-rm`",
        (
            "is called as fn(args, sample, **kw) and as fn(args, samples, **kw); or is a reward model, which is built with nothing, "
            "config or checkpoint_path, and has score or compute_reward(prompt, response, next_state) or batch_compute_rewards",
            "is asynchronous: async def",
            RUNS,
            "returns for one sample a finite number, or a dict with the entry of --reward-key",
            "returns for a list of samples a list with one reward each",
            "returns an empty list for an empty list",
            "does not change tokens, response or loss mask of the samples",
        ),
    ),
    "dynamic_filter": Kind(
        "dynamic_sampling_filter_path",
        "once per finished group; dropped groups are counted by reason",
        (
            "is called as fn(args, group, **kw)",
            SYNCHRONOUS,
            RUNS,
            "returns a bool, or an object with keep (a bool) and reason (text or None)",
            "does not change the group",
        ),
    ),
    "buffer_filter": Kind(
        "buffer_filter_path",
        "when groups are taken from a data source that holds returned groups",
        (
            "is called as fn(args, rollout_id, buffer, num_samples), with rollout_id None",
            SYNCHRONOUS,
            RUNS,
            "returns a list of at most num_samples groups of the buffer",
            "removes the groups it returns from the buffer",
        ),
    ),
    "sample_filter": Kind(
        "rollout_sample_filter_path",
        "once per rollout, on the groups that are kept",
        (
            "is called as fn(args, groups); its result is ignored",
            SYNCHRONOUS,
            RUNS,
            "marks samples with remove_sample and does not change the groups",
        ),
    ),
    "all_samples": Kind(
        "rollout_all_samples_process_path",
        "once per rollout, on all finished groups; the third value is the data source's `get_samples`",
        ("is called as fn(args, all_groups, data_source)", SYNCHRONOUS, RUNS),
    ),
    "data_source": Kind(
        "data_source_path",
        "at the start, in the rollout manager; `save` when a checkpoint is on disk, `load` when a run resumes",
        (
            "is a class and is called as cls(args)",
            "has get_samples(n), add_samples(groups), save(rollout_id) and load(rollout_id=None)",
            RUNS,
            "returns n lists of samples from get_samples(n)",
            "gives every group its own group_index and every sample its own index",
            "accepts groups of any size in add_samples, or raises RuntimeError if it keeps none",
            "continues after load(rollout_id) with the prompts that followed save(rollout_id)",
        ),
    ),
    "sample_hook": Kind(
        "rollout_sample_hook_path",
        "after generation and before the reward; the flag can be repeated",
        (
            "is called as fn(args, sample), with rollout_id=... and evaluation=... if it has those parameters",
            RUNS,
            "returns a sample or None, or a coroutine of one of them",
        ),
    ),
    "rollout_log": Kind(
        "custom_rollout_log_function_path",
        "once per rollout; a true result skips the default metrics",
        (
            "is called as fn(rollout_id, args, samples, extra_metrics, rollout_time)",
            SYNCHRONOUS,
            RUNS,
            "does not change the samples",
        ),
    ),
    "eval_log": Kind(
        "custom_eval_rollout_log_function_path",
        "once per evaluation; a true result skips the default metrics",
        (
            "is called as fn(rollout_id, args, data, extra_metrics)",
            SYNCHRONOUS,
            RUNS,
            "does not change the data",
        ),
    ),
    "reward_post_process": Kind(
        "custom_reward_post_process_path",
        "once per rollout, in place of the normalisation of rewards",
        (
            "is called as fn(args, samples)",
            SYNCHRONOUS,
            RUNS,
            "returns the pair (raw_rewards, rewards)",
            "returns one finite number per sample in both",
        ),
    ),
    "convert": Kind(
        "custom_convert_samples_to_train_data_path",
        "once per rollout, in place of the whole conversion, normalisation included",
        (
            "is called as fn(args, samples)",
            SYNCHRONOUS,
            RUNS,
            "returns a dict with tokens, response_lengths, rewards and loss_masks, one entry per sample, masks as long as responses",
            "gives every response at least one token before it: the last token of its prompt",
            "gives finite rewards",
            "gives rollout_log_probs and teacher_*, if present, an entry per sample as long as its response; rollout_log_probs for all samples or none",
            "gives no rollout_top_p_token_ids, and gives rollout_routed_experts, [tokens - 1, layers, experts per token] of each sample, if and only if --use-rollout-routing-replay is set",
            "gives multimodal_train_inputs, if present, an entry per sample: None, or pixel_values [patches, D] and image_grid_thw [images, 3]",
        ),
    ),
    "data_postprocess": Kind(
        "rollout_data_postprocess_path",
        "once per rollout on every training rank, after log probabilities and advantages",
        ("is called as fn(args), or as fn(args, rollout_id, rollout_data) if it takes three", SYNCHRONOUS, RUNS),
    ),
    "loss": Kind(
        "custom_loss_function_path",
        "once per micro-batch on every training rank; a loss that asks for values by name, once per sample",
        (
            "is called as fn(args, batch, logits, sum_of_sample_mean), or asks for its values by name, such as "
            "fn(policy_logits, reference_logits, rewards, advantages, config)",
            RUNS,
            "returns (scalar tensor, dict of metrics); a loss that asks for values by name may return the scalar alone",
            "returns a finite loss with a gradient to the logits",
            "returns metrics that are scalars without a gradient",
            "returns the same metrics for every micro-batch",
            "writes neither to the logits nor to the batch",
            "is additive: the loss of a batch is the sum over its micro-batches (reduce with sum_of_sample_mean)",
        ),
    ),
    "advantage": Kind(
        "custom_advantage_function_path",
        "once per rollout on every training rank, after `kl` is set",
        (
            "is called as fn(args, rollout_data)",
            RUNS,
            'sets rollout_data["advantages"] and rollout_data["returns"], one value per response token',
            "sets finite values",
        ),
    ),
    "tis": Kind(
        "custom_tis_function_path",
        "once per micro-batch, with `--use-tis` or `--get-mismatch-metrics`",
        (
            "is called with the keywords args, pg_loss, train_log_probs, rollout_log_probs, loss_masks, total_lengths, response_lengths",
            RUNS,
            "returns (pg_loss, masks, metrics)",
            "returns a pg_loss of the same shape, and a mask per sample as long as its response",
            "returns metrics with one value per response token",
        ),
    ),
    "pg_loss_reducer": Kind(
        "custom_pg_loss_reducer_function_path",
        "once per micro-batch, for the policy loss only",
        (
            "is called as fn(total_lengths, response_lengths, loss_masks, calculate_per_token_loss), with args=... if it has that parameter",
            RUNS,
            "returns a function that reduces one value per response token to one number",
            "gives masked tokens no weight",
        ),
    ),
    "arguments": Kind(
        "custom_arguments_path",
        "when the command line is parsed",
        (
            "is called as add_custom_arguments(parser)",
            "declares only flags that the core does not have",
            "declares no required flag",
        ),
    ),
    "before_push": Kind(
        "before_push_path",
        "after the steps of each rollout and before their weights serve, in a thread of the driver",
        (
            "is called as fn(args, rollout_id, data_source, policies)",
            SYNCHRONOUS,
            RUNS,
            "returns a Decision, with a bool, one line and finite numbers by name",
        ),
    ),
    "model_provider": Kind(
        "custom_model_provider_path",
        "when Megatron builds the model",
        ("is called as fn(pre_process=True, post_process=True), with vp_stage=... if it has that parameter",),
    ),
    "megatron_init": Kind("custom_megatron_init_path", "when Megatron has started", ("is called as fn(args)",)),
    "before_log_prob": Kind(
        "custom_megatron_before_log_prob_hook_path",
        "before each pass without a gradient under Megatron",
        ("is called as fn(args, model, store_prefix)",),
    ),
    "before_train_step": Kind(
        "custom_megatron_before_train_step_hook_path",
        "before each optimizer step under Megatron",
        ("is called as fn(args, rollout_id, step_id, model, optimizer, opt_param_scheduler)",),
    ),
}

CLAUSES: dict[str, str] = {
    f"{name}-{number}": text for name, kind in KINDS.items() for number, text in enumerate(kind.clauses, start=1)
}


class ContractViolation(SlimeError, AssertionError):
    """A plugin breaks a clause.

    Attributes:
        clause: id of the clause, such as ``generate-2``.
        others: the further clauses that the plugin breaks.
    """

    def __init__(self, clause: str, detail: str) -> None:
        super().__init__(f"clause {clause}: the plugin {CLAUSES[clause]}; {detail}")
        self.clause = clause
        self.others: tuple[ContractViolation, ...] = ()

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *map(str, self.others)])


_collected: ContextVar[dict[str, ContractViolation] | None] = ContextVar("collected", default=None)


@contextmanager
def all_violations() -> Iterator[None]:
    """Let the checks in the block go on after a broken clause; at the end raise the first one with the others.

    A check ends early where the plugin raises, or where nothing is left to check.

    Raises:
        ContractViolation: the plugin breaks at least one clause.
    """
    contract_violations: dict[str, ContractViolation] = {}
    token = _collected.set(contract_violations)
    try:
        yield
    except ContractViolation as violation:
        contract_violations.setdefault(violation.clause, violation)
    except Exception:
        if not contract_violations:  # otherwise the check stumbled over what it has reported
            raise
    finally:
        _collected.reset(token)
    if contract_violations:
        first, *others = contract_violations.values()
        first.others = tuple(others)
        raise first


def require(condition: object, clause: str, detail: str) -> None:
    """Report a broken clause unless ``condition`` holds; ``detail`` says what the check found.

    Raises:
        ContractViolation: outside of `all_violations`.
    """
    if condition:
        return
    violation, result = ContractViolation(clause, detail), _collected.get()
    if result is None:
        raise violation
    result.setdefault(clause, violation)


@contextmanager
def running(clause: str) -> Iterator[None]:
    """Turn an exception of the plugin into a violation of ``clause``, which says that it runs."""
    try:
        yield
    except ContractViolation:
        raise
    except FormError as error:
        raise ContractViolation(error.clause, error.detail) from error
    except Exception as error:
        raise ContractViolation(clause, f"it raised {type(error).__name__}: {error}{_undefined(error)}") from error


LEFT_OUT = {
    "compute_gae": "name the parameter advantages, or import slime.algorithms.advantages.generalized_advantages"
}
"""Functions that guides call and do not show, and what has their value here."""


def _undefined(error: Exception) -> str:
    """Return what to write for a name that the plugin does not define, or nothing."""
    if not isinstance(error, NameError) or not error.name:
        return ""
    return f"; {LEFT_OUT.get(error.name, f'define {error.name} in the file, or import it')}"


def check_call(function: Callable[..., Any], clause: str, positional: int, keywords: Sequence[str] = ()) -> None:
    """Check that ``function`` takes ``positional`` values and the ``keywords``, and requires nothing else."""
    require(callable(function), clause, f"it is a {type(function).__name__}, which cannot be called")
    signature = inspect.signature(function)
    try:
        signature.bind(*[None] * positional, **dict.fromkeys(keywords))
    except TypeError as error:
        given = ", ".join([f"{positional} values" if positional else "", *[f"{name}=..." for name in keywords]]).strip(
            ", "
        )
        require(False, clause, f"its signature {signature} does not take {given}: {error}")


def check_synchronous(function: Callable[..., Any], clause: str) -> None:
    """Check that ``function`` returns a result and not a coroutine."""
    callable_ = function.__call__ if not inspect.isroutine(function) and not inspect.isclass(function) else function
    if inspect.iscoroutinefunction(callable_):  # nothing can be said about a coroutine that nobody awaits
        raise ContractViolation(clause, "it is declared with async def")


def check_asynchronous(function: Callable[..., Any], clause: str) -> None:
    """Check that ``function`` returns a coroutine."""
    function = getattr(function, "func", function)
    require(inspect.iscoroutinefunction(function), clause, "it is declared with def")


def settled(result: Any) -> Any:
    """Return ``result``; await it on the background loop if it is awaitable."""
    if not inspect.isawaitable(result):
        return result

    async def wait() -> Any:
        return await result

    return run(wait())
