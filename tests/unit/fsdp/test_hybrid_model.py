"""A model with linear attention (Qwen3.5): the trainer's log probabilities of padded samples are the model's own."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from lab.testkit import trainer
from slime.backends.fsdp_utils.backend import log_prob_pass
from slime.backends.trainer.micro_batch import RolloutShard
from tests.helpers import tiny_hybrid, trainer_ranks
from tests.helpers.tolerance import LOGITS, MODEL, assert_near


def test_padded_samples_do_not_see_each_other(tmp_path: Path) -> None:
    model = tiny_hybrid.build(tmp_path / "model")
    args = trainer.trainer_args(model, pack_sequences=False, max_tokens_per_gpu=200)
    actor, _ = trainer_ranks.start_actor(args)
    try:
        shard = trainer.shards(args, trainer.train_data(vocab=tiny_hybrid.VOCABULARY), 1)[0]
        ours = log_prob_pass(args, actor.backend.model, RolloutShard(shard), actor.device)
    finally:
        actor.shutdown()
    theirs = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    for tokens, response, values in zip(shard["tokens"], shard["response_lengths"], ours, strict=True):
        ids = torch.as_tensor(tokens)[None]
        with torch.no_grad():
            table = torch.log_softmax(theirs(ids).logits[0] / args.rollout_temperature, dim=-1)
        expected = table[-response - 1 : -1].gather(1, ids[0, -response:, None])[:, 0]
        assert_near(values, expected, roundings=MODEL, magnitude=LOGITS)
