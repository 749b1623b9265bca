"""Supervised fine-tuning as a rollout: conversations of the prompt data become samples, without an engine.

Guarantee: every conversation of the batch becomes a sample with the chat template's ids. Use it with
``--loss-type sft_loss`` and ``--debug-train-only``.
"""

from __future__ import annotations

import logging
from typing import Any

from groundwork.chat_messages import check_messages
from groundwork.exceptions import ConfigError
from groundwork.processors import load_processor, load_tokenizer
from slime.args import Arguments
from slime.rollout.multimodal_requests import expand_images, images_of
from slime.utils.mask_utils import MultiTurnLossMaskGenerator
from slime.utils.misc import SingletonMeta
from slime.utils.types import Sample

logger = logging.getLogger(__name__)


class MaskState(metaclass=SingletonMeta):
    """The mask generator of this process; created from the first ``args``."""

    def __init__(self, args: Arguments) -> None:
        tokenizer = load_tokenizer(args.hf_checkpoint)
        self.generator = MultiTurnLossMaskGenerator(tokenizer, args.loss_mask_type)
        self.processor = load_processor(args.hf_checkpoint) if args.multimodal_keys else None


def generate_rollout(
    args: Arguments, rollout_id: int, data_source: Any, evaluation: bool = False
) -> list[list[Sample]]:
    """Return ``rollout_batch_size`` groups of one sample each, with reward 0.

    The prompt of a row (``--input-key``) is a list of messages; its tools are in the column ``--tool-key``, as a list or as
    its JSON text. A conversation without a message to train on is kept with an empty response and logged.

    Raises:
        ConfigError: a group has several samples, a prompt is not a list of messages that the model's template
            takes, or an evaluation is requested.
    """
    if evaluation:
        raise ConfigError("supervised fine-tuning cannot evaluate; use --eval-function-path")
    if not args.rollout_global_dataset:
        raise ConfigError("supervised fine-tuning needs --prompt-data; remove --disable-rollout-global-dataset")
    groups = data_source.get_samples(args.rollout_batch_size)
    for group in groups:
        if len(group) != 1:
            raise ConfigError(
                f"supervised fine-tuning uses each conversation once; replace --n-samples-per-prompt {len(group)} with 1"
            )
        state = MaskState(args)
        try:
            fill(group[0], state)
        except ConfigError as error:
            raise ConfigError(f"{place_of(group[0], data_source)}: {error}") from error
    untrained = sum(not group[0].response_length for group in groups)
    if untrained:
        logger.warning(
            "rollout %d: %d of %d conversations have nothing to train on", rollout_id, untrained, len(groups)
        )
    return groups


def place_of(sample: Sample, data_source: Any) -> str:
    """Return where a sample's conversation stands: file and row, or the sample's number if the source has no rows."""
    for row in getattr(data_source, "dataset", None) or ():
        if row.prompt == sample.prompt:
            return f"--prompt-data {data_source.args.prompt_data}, row {row.index}"
    return f"sample {sample.index}"


def fill(sample: Sample, state: MaskState) -> None:
    """Set tokens, response, mask, reward and status of a sample whose prompt is a conversation.

    Raises:
        ConfigError: the prompt is none that the model's template takes.
    """
    messages = sample.prompt
    if not isinstance(messages, list):
        raise ConfigError(
            "the prompt is not a list of messages; name their column with --input-key and remove --apply-chat-template"
        )
    if not images_of(sample):
        check_messages(messages)
    sample.tokens, mask = state.generator.get_loss_mask(messages, tools=sample.metadata.get("tools"))
    if images_of(sample):
        sample.tokens, mask = expand_images(state.processor, sample, sample.tokens, mask)
    (sample.response_length,) = state.generator.get_response_lengths([mask])
    sample.loss_mask = mask[len(mask) - sample.response_length :]
    sample.reward = 0.0
    sample.status = Sample.Status.COMPLETED
