"""The gate's trainer side: a refused batch leaves no bit behind, and both versions answer as Hugging Face's model does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from lab.testkit import trainer
from tests.helpers import gate_ranks
from tests.helpers.long import long_but

LORA = {"use_lora": True, "lora_dropout": 0.1, "adam_eps": 1e-4}
"""The dropout needs the random state of before, too."""
MOVING = {"use_kl_loss": True, "kl_loss_coef": 0.1, "ref_update_interval": 1, "reset_optimizer_states": True}
FSDP = [{}, LORA, MOVING, {"train_dtype": "bfloat16"}, {"max_tokens_per_gpu": 16, "pack_sequences": False}]
MEGATRON: dict[str, Any] = {"train_backend": "megatron"}
TP2, PP2, CP2 = ({f"{kind}_parallel_size": 2} for kind in ("tensor_model", "pipeline_model", "context"))
CASES = {
    "fsdp, 1 rank": (1, FSDP),
    "fsdp, 2 ranks": (2, [{}, LORA, MOVING, {"fsdp_cpu_offload": True}]),
    "megatron, 1 rank": (1, [MEGATRON, MEGATRON | {"use_lora": True}]),
    "megatron, 2 ranks": (
        2,
        [MEGATRON | TP2, MEGATRON, MEGATRON | PP2, MEGATRON | CP2, MEGATRON | TP2 | {"use_lora": True}],
    ),
}


@pytest.mark.parametrize("name", long_but(CASES, "fsdp, 2 ranks", "megatron, 1 rank"))
def test_a_refused_batch_leaves_no_bit_and_answers_are_those_of_hugging_face(
    name: str, tmp_path: Path, tiny_random_tied_model: Path
) -> None:
    ranks, cases = CASES[name]
    # The first case goes back to its checkpoint in the end.
    cases = [cases[0] | {"save": str(tmp_path / "save")}, *cases[1:]]
    out = tmp_path / "answers.pt"
    trainer.on_ranks(ranks, gate_ranks.refuse_one, cases, str(tiny_random_tied_model), str(out))
    for changes, found in zip(cases, torch.load(out, weights_only=False), strict=True):
        exact = changes.get("train_dtype") != "bfloat16"
        for served, weights in ((True, found["served"]), (False, found["candidate"])):
            _check(tiny_random_tied_model, weights, found["answers"][served], exact=exact)
        assert found["answers"][True] != found["answers"][False]


@torch.no_grad()
def _check(folder: Path, weights: dict[str, torch.Tensor], answers: list[Any], *, exact: bool) -> None:
    """Compare answers with transformers' own model: scores in float64, replies as it generates them."""
    hf: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    hf.load_state_dict({name: value.float() for name, value in weights.items()}, strict=False)
    hf.tie_weights()
    for probe, answer in zip(gate_ranks.probes(), answers, strict=True):
        prompt = torch.tensor([probe.prompt_ids])
        if probe.max_new_tokens and exact:
            reply = hf.generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=probe.max_new_tokens, do_sample=False
            )[0, prompt.size(1) :].tolist()
            assert answer.greedy_ids == reply
            assert answer.finished == (reply[-1] in _ends(hf))
        assert bool(answer.greedy_ids) == bool(probe.max_new_tokens)
        assert len(answer.log_probs) == len(probe.reply_ids)
    hf = hf.double()
    for probe, answer in zip(gate_ranks.probes(), answers, strict=True):
        if probe.reply_ids:
            logits = hf(torch.tensor([[*probe.prompt_ids, *probe.reply_ids]])).logits[0, len(probe.prompt_ids) - 1 : -1]
            wanted = logits.log_softmax(-1).gather(-1, torch.tensor([probe.reply_ids]).T).squeeze(-1)
            difference = (torch.tensor(answer.log_probs, dtype=torch.float64) - wanted).abs().max()
            assert difference < (1e-5 if exact else 0.1)


def _ends(hf: Any) -> list[int]:
    ends = hf.generation_config.eos_token_id
    return ends if isinstance(ends, list) else [ends]
