"""The samples of an evaluation set and their sampling parameters.

Guarantees: a file is read, rendered and checked against its grader once per process; every group has fresh samples.
"""

from __future__ import annotations

from typing import Any

from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.arguments.evaluation import EvalDataset
from slime.rollout.data_source import read_rows, rows_to_samples
from slime.rollout.multimodal_prompts import fresh_copies
from slime.rollout.rm_hub import BY_TYPE, check_samples
from slime.utils.types import Sample

_prompts: dict[EvalDataset, list[Sample]] = {}


def load_eval_prompts(args: Arguments, dataset: EvalDataset) -> list[Sample]:
    """Return the prompts of a set, shared and read-only, with pictures as stored in the file.

    Raises:
        ConfigError: there are no prompts, or the set's grader does not exist.
        SampleError: a row lacks what its grader needs.
    """
    if dataset not in _prompts:
        _prompts[dataset] = _read_prompts(args, dataset)
    return _prompts[dataset]


def eval_group(args: Arguments, dataset: EvalDataset, position: int) -> list[Sample]:
    """Return ``n_samples_per_eval_prompt`` fresh samples of the prompt at ``position``; pictures stay as stored."""
    count = dataset.n_samples_per_eval_prompt
    group = fresh_copies(load_eval_prompts(args, dataset)[position], count)
    for number, sample in enumerate(group, position * count):
        sample.group_index, sample.index = position, number
    return group


def eval_sampling_params(dataset: EvalDataset, sampling_params: dict[str, Any]) -> dict[str, Any]:
    """Return the rollout's ``sampling_params``, overridden by the set's own."""
    parameters = {
        **sampling_params,
        "temperature": dataset.temperature,
        "top_p": dataset.top_p,
        "top_k": dataset.top_k,
        "max_new_tokens": dataset.max_response_len,
    }
    if dataset.min_new_tokens is not None:
        parameters["min_new_tokens"] = dataset.min_new_tokens
    return parameters


def _read_prompts(args: Arguments, dataset: EvalDataset) -> list[Sample]:
    rows = read_rows(dataset.path)
    prompts = rows_to_samples(
        args,
        rows,
        dataset.input_key,
        dataset.label_key,
        tool_key=dataset.tool_key,
        longest=dataset.max_prompt_len,
        name=f"evaluation set {dataset.name}, {dataset.path}",
    )
    if not prompts:
        raise ConfigError(f"evaluation set {dataset.name}: {dataset.path} has no prompt; name another file")
    for prompt in prompts:
        prompt.generate_function_path = dataset.custom_generate_function_path
        prompt.custom_rm_path = dataset.custom_rm_path
        if dataset.rm_type:
            prompt.metadata["rm_type"] = dataset.rm_type
            prompt.custom_rm_path = BY_TYPE
    check_samples(args, prompts)
    return prompts
