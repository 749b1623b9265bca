"""Leased samples whose turns saw pictures get the pixel values that the trainer reads.

Guarantees: the pixel values are the processor's of the stored files, which are at the model's size: the same computation
as for agents' screens (`agentrl.rollout.episode`). A sample whose tokens do not have its pictures where the ledger says
is not trained. Owns the processor, which the first picture loads.
"""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Any

from groundwork.exceptions import ConfigError
from groundwork.images import open_image, picture_tensors
from groundwork.processors import load_processor
from openclaw.ledger.records import SeenPicture
from openclaw.ledger.store import Ledger
from slime.utils.types import Sample

logger = logging.getLogger(__name__)


class SamplePictures:
    """Gives samples their pictures."""

    def __init__(self, ledger: Ledger, checkpoint: str) -> None:
        """Prepare for the samples of ``ledger`` and the model of ``checkpoint``."""
        self._ledger = ledger
        self._checkpoint = checkpoint

    @cached_property
    def _processor(self) -> Any:
        processor = load_processor(self._checkpoint)
        if processor is None:
            raise ConfigError(
                f"the ledger has turns with pictures, but {self._checkpoint} sees none; give the Qwen3-VL checkpoint that "
                "answered them to --hf-checkpoint"
            )
        return processor

    def show(self, sample: Sample) -> bool:
        """Set a sample's pixel values; return False if its tokens are not those of the turn that saw the pictures.

        A sample of several turns has the pictures of its last one, whose prompt extends the others.
        """
        turn = (sample.metadata.get("turns") or [sample.metadata["turn_id"]])[-1]
        pictures = self._ledger.pictures.of(turn)
        if not pictures:
            return True
        if not _has(sample, pictures, self._processor.image_token_id):
            name = sample.metadata["ledger_id"]
            logger.error("sample %s is not trained: its tokens lack the pictures of turn %s", name, turn)
            return False
        images = [open_image(picture.png) for picture in pictures]
        sample.multimodal_train_inputs = picture_tensors(self._processor, images)
        return True


def _has(sample: Sample, pictures: list[SeenPicture], placeholder: int) -> bool:
    return all(
        sample.tokens[picture.start : picture.start + picture.tokens] == [placeholder] * picture.tokens
        for picture in pictures
    )
