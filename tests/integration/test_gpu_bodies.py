"""The bodies of `tests/gpu` that need no engine, on a CPU; those with one are in `test_engine_live.py` and `test_adapter_live.py`."""

from __future__ import annotations

from pathlib import Path

from slime.weight_sync.shared_memory import SharedMemoryWeightSync
from tests.helpers.push_checks import check_a_refused_bucket, check_pushes, check_slots
from tests.helpers.weight_receivers import CPU


def test_pushes_arrive_bit_for_bit(tmp_path: Path) -> None:
    check_pushes(tmp_path, CPU, "cpu")


def test_a_refused_first_bucket_is_noticed_and_the_next_push_is_whole(tmp_path: Path) -> None:
    check_a_refused_bucket(tmp_path, CPU, "cpu")


def test_slots_are_made_once_and_outlive_a_receiver(tmp_path: Path) -> None:
    check_slots(tmp_path, CPU, "cpu", SharedMemoryWeightSync)
