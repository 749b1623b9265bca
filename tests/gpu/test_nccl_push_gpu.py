"""A real NCCL push between two GPUs, and one whose first bucket is refused; the receiver is a process without an engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.figures import record_figure
from tests.helpers.push_checks import DETECTED_SECONDS, check_a_refused_bucket, check_pushes

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs 2 CUDA devices")


def test_the_other_gpu_holds_the_weights_bit_for_bit(tmp_path: Path) -> None:
    check_pushes(tmp_path, torch.device("cuda", 0), "cuda:1")


def test_a_refused_bucket_is_noticed_and_the_next_push_is_whole(tmp_path: Path) -> None:
    took = check_a_refused_bucket(tmp_path, torch.device("cuda", 0), "cuda:1")
    record_figure("NCCL push/a refused first bucket is noticed", took, "s", limit=DETECTED_SECONDS)
