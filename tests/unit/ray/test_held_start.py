"""A policy engine that comes back in a run holds its requests from its first moment; a judge and one without trainer do not."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest

from slime.args import Arguments
from slime.backends.sglang_utils import server, server_hooks
from slime.ray import engine_group
from slime.ray.engine_group import EngineGroup
from slime.weight_sync.remote_engine import RemoteEngine


class Manager:
    """As much of SGLang's tokenizer manager as the hook touches."""

    def __init__(self, name: str) -> None:
        self.name, self.is_pause = name, False


def test_a_manager_begins_as_after_a_pause() -> None:
    manager = Manager.__new__(Manager)
    server_hooks.begin_paused(Manager.__init__, manager, "x")
    assert (manager.name, manager.is_pause) == ("x", True)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], []),
        ([server_hooks.HOLD], ["held"]),
        ([server_hooks.NF4_BASE], ["quantised"]),
        ([server_hooks.NF4_BASE, server_hooks.HOLD], ["quantised", "held"]),
    ],
)
@pytest.mark.parametrize("options", [["--port", "1"], ["--quantization", "bitsandbytes"]])
def test_the_server_takes_its_own_flags_for_itself(
    monkeypatch: pytest.MonkeyPatch, words: list[str], expected: list[str], options: list[str]
) -> None:
    """A checkpoint that others quantised with bitsandbytes is SGLang's own to load."""
    seen: list[Any] = []

    def run_server(options: list[str]) -> None:
        assert importlib.util.find_spec("megatron") is None, "SGLang would import it, which takes a second"
        seen.append(options)

    sglang = {
        "megatron": SimpleNamespace(),
        "sglang.launch_server": SimpleNamespace(run_server=run_server),
        "sglang.srt.plugins": SimpleNamespace(load_plugins=lambda: None),
        "sglang.srt.server_args": SimpleNamespace(prepare_server_args=lambda options: options),
        "sglang.srt.utils": SimpleNamespace(kill_process_tree=lambda *_, **__: None),
    }
    for name, module in sglang.items():
        monkeypatch.setitem(server.sys.modules, name, module)
    monkeypatch.setattr(server, "watch_lifeline", lambda: None)
    monkeypatch.setattr(server, "collect_rarely", lambda: seen.append("rarely"))
    monkeypatch.setattr(server, "remove_leftovers", lambda: None)
    monkeypatch.setattr(server.server_hooks, "hold_from_start", lambda: seen.append("held"))
    quantised = SimpleNamespace(quantise_base=lambda *, cpu: seen.append("quantised"))
    monkeypatch.setitem(server.sys.modules, "slime.backends.sglang_utils.quantised_base", quantised)
    monkeypatch.setattr(server.sys, "argv", ["server", *options, *words])
    server.main()
    assert seen == ["rarely", *expected, options]


@pytest.mark.parametrize(
    ("role", "rollout_only", "hold"), [("policy", False, True), ("policy", True, False), ("prm", False, False)]
)
def test_who_is_held(monkeypatch: pytest.MonkeyPatch, role: str, rollout_only: bool, hold: bool) -> None:
    asked: list[tuple[str, Any]] = []

    class Handle:
        def __getattr__(self, name: str) -> Any:
            def remote(*arguments: Any) -> bool:
                asked.append((name, *arguments))
                return True

            return SimpleNamespace(remote=remote)

    monkeypatch.setattr(engine_group.ray, "get", lambda reference: reference)
    group = EngineGroup.__new__(EngineGroup)
    group._workers = None
    group.role, group.handles, group._args = role, [RemoteEngine(Handle())], Arguments(debug_rollout_only=rollout_only)  # type: ignore[assignment]
    assert group.revive() == [0]
    assert asked == [("is_dead",), ("restart_if_dead", hold)] + ([("pause_generation", "retract")] if hold else [])
