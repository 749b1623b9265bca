"""Supervised fine-tuning as a rollout: every conversation of the batch is trained on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.rollout.data_source import RolloutDataSourceWithBuffer
from slime.rollout.sft_rollout import MaskState, generate_rollout
from slime.rollout.train_data import convert, split_by_dp
from slime.utils.misc import SingletonMeta

ROWS = 8


@pytest.fixture
def args(tiny_random_model: Path, tmp_path: Path) -> Iterator[Arguments]:
    file = tmp_path / "talks.jsonl"
    talks = [
        [{"role": "user", "content": f"{n} + {n}?"}, {"role": "assistant", "content": f"It is {2 * n}."}]
        for n in range(ROWS)
    ]
    file.write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
    SingletonMeta.clear(MaskState)
    yield Arguments(
        hf_checkpoint=str(tiny_random_model),
        loss_mask_type="qwen3",
        prompt_data=str(file),
        input_key="messages",
        label_key=None,
        metadata_key="metadata",
        tool_key="tools",
        multimodal_keys=None,
        apply_chat_template=False,
        apply_chat_template_kwargs={},
        rollout_global_dataset=True,
        rollout_shuffle=False,
        rollout_seed=42,
        n_samples_per_prompt=1,
        rollout_batch_size=ROWS,
        buffer_filter_path=None,
        # The defaults of a run: group-relative rewards would be constant in every group.
        advantage_estimator="grpo",
        rewards_normalization=True,
        reward_key=None,
        global_batch_size=ROWS,
        use_dynamic_batch_size=True,
        max_tokens_per_gpu=64,
        context_parallel_size=1,
    )
    SingletonMeta.clear(MaskState)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_conversation_is_trained_on_whatever_the_ranks(args: Arguments, ranks: int) -> None:
    groups = generate_rollout(args, 0, RolloutDataSourceWithBuffer(args))
    samples = [sample for group in groups for sample in group]
    assert [len(group) for group in groups] == [1] * ROWS
    shards = split_by_dp(convert(args, samples), ranks, args)
    trained = [
        (tuple(shard["tokens"][index]), tuple(shard["loss_masks"][index]))
        for shard in shards
        for batch in shard["micro_batch_indices"][0]
        for index in batch
    ]
    assert sorted(trained) == sorted((tuple(s.tokens), tuple(s.loss_mask)) for s in samples)
    assert all(sum(mask) for _, mask in trained)
    assert {size for shard in shards for size in shard["global_batch_sizes"]} == {ROWS}


def test_a_sample_is_the_template_and_its_reply(args: Arguments) -> None:
    ((sample,), *_) = generate_rollout(args, 0, RolloutDataSourceWithBuffer(args))
    tokenizer = MaskState(args).generator.tokenizer
    assert tokenizer.decode(sample.tokens) == tokenizer.apply_chat_template(sample.prompt, tokenize=False)
    masked_in = [
        token for token, kept in zip(sample.tokens[-sample.response_length :], sample.loss_mask, strict=True) if kept
    ]
    assert tokenizer.decode(masked_in) == "It is 0.<|im_end|>"
    assert sample.reward == 0.0


@pytest.mark.parametrize("kind", ["qwen", "qwen3_5"])
def test_the_mask_is_that_of_the_flag(args: Arguments, kind: str) -> None:
    args.loss_mask_type = kind
    assert MaskState(args).generator.tokenizer_type == kind


def test_what_does_not_fit_says_what_to_change(args: Arguments) -> None:
    args.n_samples_per_prompt = 2
    with pytest.raises(ConfigError, match="--n-samples-per-prompt 2 with 1"):
        generate_rollout(args, 0, RolloutDataSourceWithBuffer(args))
    args.n_samples_per_prompt = 1
    source = RolloutDataSourceWithBuffer(args)
    assert source.dataset is not None
    source.dataset[0].prompt = "text"
    with pytest.raises(ConfigError, match="--input-key"):
        generate_rollout(args, 0, source)
    with pytest.raises(ConfigError, match="--eval-function-path"):
        generate_rollout(args, 0, source, evaluation=True)
