"""Flags of the weight sync that have no effect are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.args import Arguments
from slime.arguments.trainer import check_weight_sync, derive_weight_sync


@pytest.mark.parametrize("changes", [{"update_weight_disk_dir": "weights"}, {"update_weight_disk_keep_files": True}])
def test_disk_flags_need_the_disk(changes: dict[str, object]) -> None:
    (problem,) = check_weight_sync(Arguments(**changes))
    flag = "--" + next(iter(changes)).replace("_", "-")
    assert problem == f"{flag} has no effect without --update-weight-transport disk; add it"
    assert not check_weight_sync(Arguments(update_weight_transport="disk", **changes))


def lora(**changes: object) -> list[str]:
    args = Arguments(**{"use_lora": True, "hf_checkpoint": "base", "update_weight_mode": "adapter", **changes})
    return check_weight_sync(args)


def test_a_lora_run_sends_its_adapter_unless_the_engines_serve_another_base(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    cases: list[tuple[dict[str, object], str]] = [
        ({"use_lora": True}, "adapter"),
        ({"use_lora": True, "ref_load": "./base"}, "adapter"),
        ({"use_lora": True, "update_weight_mode": "full"}, "full"),
        ({"use_lora": True, "update_weight_transport": "shared"}, "full"),
        ({"use_lora": True, "load": str(tmp_path)}, "full"),
        ({"use_lora": True, "rollout_external_engine_addrs": ["a:1"]}, "full"),
        ({"use_lora": True, "sglang_tokenizer_worker_num": 2}, "full"),
        ({"use_lora": True, "sglang_tokenizer_worker_num": 1}, "adapter"),
        ({}, "full"),
    ]
    for changes, mode in cases:
        args = Arguments(**{"hf_checkpoint": "base", **changes})
        derive_weight_sync(args)
        assert args.update_weight_mode == mode, changes


def test_what_an_adapter_push_cannot_do_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert lora() == []
    assert lora(use_lora=False) == ["--update-weight-mode adapter needs --use-lora; add it"]
    assert "which the engines do not serve; use full" in lora(load=str(tmp_path))[0]
    assert "running engines" in lora(rollout_external_engine_addrs=["a:1"])[0]
    assert "remove --sglang-tokenizer-worker-num" in lora(sglang_tokenizer_worker_num=2)[0]
    assert "has no effect with --update-weight-mode adapter" in lora(update_weight_transport="shared")[0]


def test_changes_are_broadcast() -> None:
    delta = {"update_weight_mode": "delta"}
    assert check_weight_sync(Arguments(**delta)) == []
    assert "always broadcasts" in check_weight_sync(Arguments(update_weight_transport="shared", **delta))[0]
