"""Generation of the example: a reply, a remark without training, and a second reply."""

from __future__ import annotations

from slime.rollout.sglang_rollout import GenerateState
from slime.utils.http_utils import post
from slime.utils.types import Sample

REMARK = "<|im_end|>\n<|im_start|>user\nShorter.<|im_end|>\n<|im_start|>assistant\n"


async def generate(args, sample, sampling_params, evaluation=False):
    """Answer twice, with the remark's tokens under mask 0 in between; in evaluation, answer once."""
    tokenizer = GenerateState(args).tokenizer
    sample.tokens = tokenizer.encode(sample.prompt, add_special_tokens=False)
    sample.response, sample.response_length = "", 0
    sample.loss_mask, sample.rollout_log_probs = [], []
    turns = 1 if evaluation else 2
    budget = sampling_params["max_new_tokens"]
    for turn in range(turns):
        if turn:
            remark = tokenizer.encode(REMARK, add_special_tokens=False)
            append(sample, remark, [0.0] * len(remark), 0, REMARK)
        answer = await post(
            f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate",
            {
                "input_ids": sample.tokens,
                "sampling_params": {**sampling_params, "max_new_tokens": max(1, budget // turns)},
                "return_logprob": True,
            },
        )
        entries = answer["meta_info"]["output_token_logprobs"]
        append(sample, [entry[1] for entry in entries], [entry[0] for entry in entries], 1, answer["text"])
        sample.update_from_meta_info(args, answer["meta_info"])
        if sample.status == Sample.Status.ABORTED:
            break
    sample.metadata["turns"] = turn + 1
    return sample


def append(sample, ids, log_probs, mask, text):
    """Append tokens to the response and all its parallel lists."""
    sample.tokens = sample.tokens + ids
    sample.response += text
    sample.response_length += len(ids)
    sample.rollout_log_probs = sample.rollout_log_probs + log_probs
    sample.loss_mask = sample.loss_mask + [mask] * len(ids)
