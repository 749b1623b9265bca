"""The samples of an evaluation set and how they are sampled.

Guarantee: a file is read and rendered once per process; every call returns fresh samples.
"""

from __future__ import annotations

import copy
from argparse import Namespace
from typing import Any

from slime.rollout.data_source import read_rows, rows_to_samples
from slime.utils.types import Sample

_prompts: dict[str, list[Sample]] = {}


def load_eval_samples(
    args: Namespace, dataset: dict[str, Any], sampling_params: dict[str, Any]
) -> tuple[list[Sample], dict[str, Any]]:
    """Return ``n_samples_per_eval_prompt`` samples per prompt of ``{"name", "path"}``, and sampling parameters."""
    path = dataset["path"]
    if path not in _prompts:
        _prompts[path] = rows_to_samples(args, read_rows(path), args.eval_input_key, args.eval_label_key)
    samples = []
    for group, prompt in enumerate(_prompts[path]):
        for _ in range(args.n_samples_per_eval_prompt):
            sample = copy.deepcopy(prompt)
            sample.group_index, sample.index = group, len(samples)
            samples.append(sample)
    parameters = {
        **sampling_params,
        "temperature": args.eval_temperature,
        "top_p": args.eval_top_p,
        "top_k": args.eval_top_k,
        "max_new_tokens": args.eval_max_response_len,
    }
    return samples, parameters
