"""Supervised fine-tuning as a rollout: conversations of the prompt data become samples, without an engine.

Guarantee: every conversation of the batch becomes a sample with the chat template's ids. Use it with
``--loss-type sft_loss`` and ``--debug-train-only``.
"""

from __future__ import annotations

import logging
from typing import Any

from slime.args import Arguments
from slime.exceptions import ConfigurationError
from slime.rollout.multimodal_requests import expand_images, images_of
from slime.utils.mask_utils import MultiTurnLossMaskGenerator
from slime.utils.misc import SingletonMeta
from slime.utils.processing_utils import load_processor, load_tokenizer
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

    The prompt of a row (``--input-key``) is a list of messages; its tools are in the column ``--tool-key``. A conversation without a
    message to train on is kept with an empty response and logged.

    Raises:
        ConfigurationError: a group has several samples, a prompt is not a list of messages, or an evaluation is
            requested.
    """
    if evaluation:
        raise ConfigurationError("supervised fine-tuning cannot evaluate; use --eval-function-path")
    if not args.rollout_global_dataset:
        raise ConfigurationError("supervised fine-tuning needs --prompt-data; remove --disable-rollout-global-dataset")
    groups = data_source.get_samples(args.rollout_batch_size)
    for group in groups:
        if len(group) != 1:
            raise ConfigurationError(
                f"supervised fine-tuning uses each conversation once; replace --n-samples-per-prompt {len(group)} with 1"
            )
        fill(group[0], MaskState(args))
    untrained = sum(not group[0].response_length for group in groups)
    if untrained:
        logger.warning(
            "rollout %d: %d of %d conversations have nothing to train on", rollout_id, untrained, len(groups)
        )
    return groups


def fill(sample: Sample, state: MaskState) -> None:
    """Set tokens, response, mask, reward and status of a sample whose prompt is a conversation."""
    messages = sample.prompt
    if not isinstance(messages, list) or not all(
        isinstance(message, dict) and "role" in message for message in messages
    ):
        raise ConfigurationError(
            f"sample {sample.index}: the prompt is not a list of messages; name their column with --input-key and remove "
            "--apply-chat-template"
        )
    sample.tokens, mask = state.generator.get_loss_mask(messages, tools=sample.metadata.get("tools"))
    if images_of(sample):
        sample.tokens, mask = expand_images(state.processor, sample, sample.tokens, mask)
    (sample.response_length,) = state.generator.get_response_lengths([mask])
    sample.loss_mask = mask[len(mask) - sample.response_length :]
    sample.reward = 0.0
    sample.status = Sample.Status.COMPLETED
