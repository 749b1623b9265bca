"""Weights through memory of one GPU, by CUDA IPC, and through pinned host memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.helpers.push_checks import check_pushes


@pytest.mark.parametrize("share_gpu", [True, False])
def test_a_process_on_the_gpu_holds_the_weights_bit_for_bit(tmp_path: Path, share_gpu: bool) -> None:
    flags = {"update_weight_transport": "shared", "share_gpu": share_gpu}
    check_pushes(tmp_path, torch.device("cuda", 0), "cuda:0", **flags)
