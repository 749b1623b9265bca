"""Commands of programs' models: their order, what a failure does, and every end of a process."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tinker.proto.response_conv import deserialize_forward_backward_output

from openclaw.ledger.exceptions import LedgerVersionError, UnknownRecordError
from openclaw.ledger.records import Tokens
from openclaw.tinker import desk as desk_module
from openclaw.tinker.desk import CREATE, LOAD, LOAD_MODEL, PASS, SAVE, SAVE_FOR_SAMPLER, STEP, Desk
from openclaw.tinker.log import TABLES, Command, CommandConflictError, CommandLog
from openclaw.tinker.wire import UserError
from slime.exceptions import CheckpointError, RankLostError, TrainerError
from tests.helpers.tinker_machine import NotedMachine, create_body, offer_of, pass_body, run_all, step_body

M, N = "s:train:0", "s:train:1"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[CommandLog]:
    with closing(CommandLog(tmp_path / "commands.sqlite")) as opened:
        opened.open_session("s", "ann", None)
        yield opened


def submit(log: CommandLog, number: int, kind: str, body: bytes, model: str = M) -> str:
    session = "s" if number == 0 else None
    return log.submit(model, "ann", number, kind, body, session=session).id


def train(log: CommandLog, steps: int, model: str = M, first: int = 1) -> list[str]:
    """Submit passes and steps, and return their ids."""
    found = []
    for number in range(first, first + 2 * steps, 2):
        found.append(submit(log, number, PASS, pass_body(model, number, [number]), model))
        found.append(submit(log, number + 1, STEP, step_body(model, number + 1, number / 10), model))
    return found


def told(log: CommandLog, identity: str) -> dict[str, Any]:
    return json.loads(log.command(identity, "ann").result or b"{}")


def test_commands_run_in_their_order_however_they_arrive(log: CommandLog, tmp_path: Path) -> None:
    submit(log, 0, CREATE, create_body())
    submit(log, 3, PASS, pass_body(M, 3, [3]))
    submit(log, 2, PASS, pass_body(M, 2, [2]))
    machine = NotedMachine(tmp_path)
    run_all(log, machine, tmp_path)
    assert machine.models[M] == [["create", 4, 1]], "the first pass is missing"
    submit(log, 1, PASS, pass_body(M, 1, [1]))
    machine = NotedMachine(tmp_path)
    run_all(log, machine, tmp_path)
    assert machine.models[M] == [["create", 4, 1], ["pass", [[1]]], ["pass", [[2]]], ["pass", [[3]]]]
    result = deserialize_forward_backward_output(log.command(f"{M}:2", "ann").result or b"")
    assert result.metrics == {"loss:sum": 1.0}
    assert result.loss_fn_outputs[0]["logprobs"].data == [-2.0]


def test_a_command_sent_twice_is_one_and_another_under_its_number_is_refused(log: CommandLog, tmp_path: Path) -> None:
    submit(log, 0, CREATE, create_body())
    assert submit(log, 1, PASS, pass_body(M, 1)) == submit(log, 1, PASS, pass_body(M, 1))
    with pytest.raises(CommandConflictError, match="command 1 of s:train:0 was sent before with other contents"):
        submit(log, 1, PASS, pass_body(M, 1, [9]))
    with pytest.raises(UnknownRecordError, match="no model"):
        log.submit(M, "ben", 2, PASS, b"")
    machine = NotedMachine(tmp_path)
    run_all(log, machine, tmp_path)
    assert submit(log, 1, PASS, pass_body(M, 1)) == f"{M}:1"
    run_all(log, again := NotedMachine(tmp_path), tmp_path)
    assert again.models == machine.models


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (create_body(base_model="other"), "base_model 'other': this server has 'tiny'"),
        (create_body(lora_config={"rank": 9}), "adapters up to rank 8; ask for less, or start it with --lora-rank 9"),
        (create_body(lora_config=None), "trains adapters alone"),
        (create_body(optimizer_config={"type": "dimuon"}), "'dimuon' is not offered here; use adamw"),
        (create_body(lora_config={"rank": 1, "train_attn": False, "train_mlp": False}), "trains nothing that has an"),
        (b"{}", "session_id: Field required"),
    ],
)
def test_a_model_that_is_not_offered_is_refused(log: CommandLog, tmp_path: Path, body: bytes, says: str) -> None:
    identity = submit(log, 0, CREATE, body)
    step = submit(log, 1, STEP, step_body(M, 1))
    run_all(log, NotedMachine(tmp_path), tmp_path)
    assert says in told(log, identity)["error"]
    assert told(log, identity)["category"] == "user"
    assert "this model was never created" in told(log, step)["error"]


def test_a_step_after_a_failed_pass_is_refused_and_its_gradient_dropped(log: CommandLog, tmp_path: Path) -> None:
    submit(log, 0, CREATE, create_body())
    submit(log, 1, PASS, pass_body(M, 1, [1]))
    failed = submit(log, 2, PASS, pass_body(M, 2, [1000]))
    refused = submit(log, 3, STEP, step_body(M, 3))
    train(log, 1, first=4)
    infinite = submit(log, 6, STEP, step_body(M, 6, 13.0))
    machine = NotedMachine(tmp_path)
    run_all(log, machine, tmp_path)
    assert "the id 1000; this model has 0 to 99" in told(log, failed)["error"]
    assert "no step was taken, because a pass before it failed" in told(log, refused)["error"]
    assert "the gradient's norm is inf" in told(log, infinite)["error"]
    assert machine.models[M] == [["create", 4, 1], ["pass", [[4]]], ["step", 0.4]]
    again = NotedMachine(tmp_path)
    run_all(log, again, tmp_path)
    assert again.models == machine.models


def test_a_model_that_trains_much_leaves_room_for_others(log: CommandLog, tmp_path: Path) -> None:
    submit(log, 0, CREATE, create_body())
    submit(log, 0, CREATE, create_body(number=1), N)
    train(log, 20)
    train(log, 2, N)
    machine = NotedMachine(tmp_path)
    run_all(log, machine, tmp_path)
    assert len(machine.order) == 44
    assert machine.order.index(N) < 10


class KilledError(BaseException):
    """The end of a process."""


def killed_at(deeds: int) -> Callable[[str], None]:
    """Return what ends the process before a deed."""
    left = [deeds]

    def before(deed: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KilledError(deed)

    return before


def test_a_kill_at_any_deed_loses_and_repeats_nothing(tmp_path: Path) -> None:
    def commands(log: CommandLog) -> None:
        log.open_session("s", "ann", None)
        submit(log, 0, CREATE, create_body())
        train(log, 3)
        submit(log, 7, SAVE, json.dumps({"model_id": M, "seq_id": 7, "path": "a"}).encode())
        submit(log, 8, PASS, pass_body(M, 8, [1000]))
        submit(log, 9, STEP, step_body(M, 9))
        submit(log, 10, PASS, pass_body(M, 10, [1], forward_only=True))
        body = {"model_id": M, "seq_id": 11, "sampling_session_seq_id": 0}
        submit(log, 11, SAVE_FOR_SAMPLER, json.dumps(body).encode())
        load = {"path": f"tinker://{M}/weights/a", "optimizer": True, "session_id": "s", "model_seq_id": 1}
        submit(log, 0, LOAD_MODEL, json.dumps(load).encode(), N)
        train(log, 1, first=12)
        train(log, 2, N)

    def results(log: CommandLog) -> list[tuple[str, str, bytes | None]]:
        ids = [*(f"{M}:{number}" for number in range(14)), *(f"{N}:{number}" for number in range(5))]
        return [(one.id, one.state, one.result) for one in (log.command(each, "ann") for each in ids)]

    whole = tmp_path / "whole"
    with closing(CommandLog(whole / "commands.sqlite")) as log:
        commands(log)
        machine = NotedMachine(whole)
        run_all(log, machine, whole)
        expected, given, counted = machine.models, results(log), log.usage.total()
        assert counted == Tokens(prefill=1, trained=6)
    deeds = 0
    while True:
        folder = tmp_path / str(deeds)
        with closing(CommandLog(folder / "commands.sqlite")) as log:
            commands(log)
            try:
                run_all(log, NotedMachine(folder, killed_at(deeds)), folder)
            except KilledError:
                pass
            else:
                break
        with closing(CommandLog(folder / "commands.sqlite")) as log:
            machine = NotedMachine(folder)
            run_all(log, machine, folder)
            assert machine.models == expected, f"killed at deed {deeds}"
            assert results(log) == given
            assert log.usage.total() == counted
            assert log.sampler("s:sample:0", "ann")[1] is not None
        deeds += 1
    assert deeds > 20


def test_a_lost_rank_is_replaced_and_the_command_repeated(log: CommandLog, tmp_path: Path) -> None:
    submit(log, 0, CREATE, create_body())
    ids = train(log, 3)
    left = [4]

    def before(deed: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise RankLostError("training rank 0 died", "optimizer_step")

    machine = NotedMachine(tmp_path, before)
    run_all(log, machine, tmp_path)
    assert machine.starts == 2
    assert [deed for deed in machine.models[M] if deed[0] == "step"] == [["step", 0.1], ["step", 0.3], ["step", 0.5]]
    assert {log.command(each, "ann").state for each in ids} == {"done"}


def test_ranks_that_always_die_end_a_command_not_the_server(log: CommandLog, tmp_path: Path) -> None:
    submit(log, 0, CREATE, create_body())
    submit(log, 0, CREATE, create_body(number=1), N)
    failed = submit(log, 1, STEP, step_body(M, 1))
    fine = submit(log, 1, PASS, pass_body(N, 1), N)

    def before(deed: str) -> None:
        if deed == "optimizer_step":
            raise RankLostError("training rank 0 died", "optimizer_step")

    machine = NotedMachine(tmp_path, before)
    run_all(log, machine, tmp_path)
    assert told(log, failed) == {
        "error": "the training ranks died 3 times under this request: training rank 0 died",
        "category": "server",
    }
    assert log.command(fine, "ann").state == "done"


def test_a_state_that_cannot_be_restored_is_told_and_others_go_on(log: CommandLog, tmp_path: Path) -> None:
    submit(log, 0, CREATE, create_body())
    submit(log, 0, CREATE, create_body(number=1), N)
    train(log, 2)
    train(log, 1, N)
    run_all(log, NotedMachine(tmp_path), tmp_path)
    for file in tmp_path.glob("snapshots/*/4/model.json"):
        file.unlink()
    lost = submit(log, 5, PASS, pass_body(M, 5))
    fine = submit(log, 3, PASS, pass_body(N, 3), N)
    run_all(log, NotedMachine(tmp_path), tmp_path)
    assert "could not restore this model" in told(log, lost)["error"]
    assert log.command(fine, "ann").state == "done"


def test_bodies_go_once_a_snapshot_contains_them(log: CommandLog, tmp_path: Path) -> None:
    submit(log, 0, CREATE, create_body())
    ids = train(log, 3)
    run_all(log, NotedMachine(tmp_path), tmp_path)
    assert [log.command(each, "ann").body for each in ids] == [None] * 6
    [model] = log.live_models()
    assert model.contains == 6
    assert [path.name for path in tmp_path.glob("snapshots/*/*")] == ["6"], "one snapshot stays"


def test_a_pass_alone_keeps_no_body_and_a_session_that_ends_keeps_nothing(log: CommandLog, tmp_path: Path) -> None:
    submit(log, 0, CREATE, create_body())
    forward = submit(log, 1, PASS, pass_body(M, 1, forward_only=True))
    wrong = submit(log, 2, PASS, pass_body(M, 2, [1000], forward_only=True))
    train(log, 2, first=3)
    body = {"model_id": M, "seq_id": 7, "sampling_session_seq_id": 0}
    submit(log, 7, SAVE_FOR_SAMPLER, json.dumps(body).encode())
    pending = submit(log, 9, PASS, pass_body(M, 9))
    machine = NotedMachine(tmp_path)
    run_all(log, machine, tmp_path)
    assert log.whole(log.command(forward, "ann")).body is None
    assert "the id 1000" in told(log, wrong)["error"]
    assert [deed[0] for deed in machine.models[M]] == ["create", "pass", "step", "pass", "step"], (
        "it breaks no gradient"
    )
    assert machine.adapters()
    assert list(tmp_path.glob("snapshots/*/*"))
    log.end_session("s", "ann")
    assert log.whole(log.command(pending, "ann")).body is None
    run_all(log, machine, tmp_path, tidy=True)
    assert not machine.adapters()
    assert not list(tmp_path.glob("snapshots/*"))


def test_only_the_newest_adapters_without_a_name_are_kept(
    log: CommandLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk_module, "KEPT_ADAPTERS", 2)
    submit(log, 0, CREATE, create_body())
    for number in range(1, 5):
        body = {"model_id": M, "seq_id": number, "sampling_session_seq_id": number}
        submit(log, number, SAVE_FOR_SAMPLER, json.dumps(body).encode())
    named = json.dumps({"model_id": M, "seq_id": 5, "path": "named"}).encode()
    submit(log, 5, SAVE_FOR_SAMPLER, named)
    submit(log, 6, SAVE_FOR_SAMPLER, named.replace(b"5", b"6"))
    machine = NotedMachine(tmp_path)
    run_all(log, machine, tmp_path, tidy=True)
    kept = {log.sampler(f"s:sample:{number}", "ann")[1] for number in (3, 4)}
    assert set(machine.adapters()) == {*kept, log.weights(f"tinker://{M}/sampler_weights/named", "ann").place}
    with pytest.raises(UnknownRecordError, match="are not kept any more; ask for a new sampling client"):
        log.sampler("s:sample:1", "ann")


def test_a_name_that_looks_like_a_temporary_folder_deletes_nothing(log: CommandLog, tmp_path: Path) -> None:
    submit(log, 0, CREATE, create_body())
    for number, name in enumerate(("a.tmp", "a.old", "a", "a"), 1):
        body = {"model_id": M, "seq_id": number, "path": name, "overwrite": True}
        submit(log, number, SAVE, json.dumps(body).encode())
    run_all(log, NotedMachine(tmp_path), tmp_path, tidy=True)
    places = [Path(kept.place) for kept in log.all_weights("ann")]
    assert len(places) == len(set(places)) == 3
    assert all((place / "model.json").is_file() for place in places)
    assert len(list(tmp_path.glob("weights/*/*"))) == 3, "what was replaced is gone"


# Ends of ranks at bad moments


def test_what_a_failure_left_is_the_same_after_a_restart(log: CommandLog, tmp_path: Path) -> None:
    submit(log, 0, CREATE, create_body())
    submit(log, 1, PASS, pass_body(M, 1, [1]))
    submit(log, 2, PASS, pass_body(M, 2, [1000]))
    run_all(log, NotedMachine(tmp_path), tmp_path)
    refused = submit(log, 3, STEP, step_body(M, 3))
    submit(log, 4, PASS, pass_body(M, 4, [4]))
    wrong = submit(log, 5, STEP, json.dumps({"model_id": M, "seq_id": 5, "adam_params": {"eps": 0}}).encode())
    run_all(log, NotedMachine(tmp_path), tmp_path)
    assert "a pass before it failed" in told(log, refused)["error"]
    assert "eps" in told(log, wrong)["error"]
    submit(log, 6, PASS, pass_body(M, 6, [6]))
    submit(log, 7, STEP, step_body(M, 7, 0.7))
    run_all(log, machine := NotedMachine(tmp_path), tmp_path)
    assert machine.models[M] == [["create", 4, 1], ["pass", [[6]]], ["step", 0.7]]


@pytest.mark.parametrize("deed", ["create", "forward_backward", "optimizer_step", "write", "read"])
@pytest.mark.parametrize("kind", [RankLostError("rank 0 died", "step"), TrainerError("rank 0 failed: no memory")])
def test_ranks_may_die_at_any_deed_also_while_models_are_restored(
    log: CommandLog, tmp_path: Path, deed: str, kind: TrainerError
) -> None:
    submit(log, 0, CREATE, create_body())
    submit(log, 0, CREATE, create_body(number=1), N)
    ids = [*train(log, 3), *train(log, 3, N)]
    run_all(log, NotedMachine(tmp_path), tmp_path)
    more = [*train(log, 2, first=7), *train(log, 2, N, 7)]
    left = [2]

    def before(done: str) -> None:
        left[0] -= done == deed
        if done == deed and left[0] in (0, -1):  # two in a row
            raise kind

    machine = NotedMachine(tmp_path, before)
    run_all(log, machine, tmp_path)
    failed = [each for each in more if log.command(each, "ann").state == "failed"]
    assert len(failed) <= 4, "a failure of a rank is that of its command, and of the step after a pass"
    assert {log.command(each, "ann").state for each in ids} == {"done"}
    again = NotedMachine(tmp_path)
    run_all(log, again, tmp_path)
    assert again.models == machine.models
    for model in (M, N):
        steps = [deed[1] for deed in again.models[model] if deed[0] == "step"]
        assert steps[:3] == [0.1, 0.3, 0.5]
        assert steps == sorted(set(steps)), "no step is missing or there twice"


def test_a_model_of_an_ended_session_leaves_although_others_are_busy(log: CommandLog, tmp_path: Path) -> None:
    log.open_session("t", "ann", None)
    submit(log, 0, CREATE, create_body())
    other = log.submit("t:train:0", "ann", 0, CREATE, create_body("t"), session="t")
    train(log, 4)
    machine = NotedMachine(tmp_path)
    desk = Desk(log, machine, offer_of(tmp_path))
    finish = log.finish

    def finish_and_end(command: Command, *arguments: Any, **keywords: Any) -> None:
        finish(command, *arguments, **keywords)
        if command.id == other.id:
            log.end_session("t", "ann")
            desk.tidy()
        if command.number == 8:
            assert "t:train:0" not in machine.models
            desk.stop()

    log.finish = finish_and_end  # type: ignore[method-assign]
    desk.run()
    assert list(machine.models) == [M]


def test_weights_have_one_name_unless_they_may_be_replaced(log: CommandLog, tmp_path: Path) -> None:
    submit(log, 0, CREATE, create_body())
    saves = [
        submit(log, number, SAVE, json.dumps({"model_id": M, "seq_id": number, "path": "a"} | more).encode())
        for number, more in ((1, {}), (2, {}), (3, {"overwrite": True}), (4, {"path": "../b"}))
    ]
    run_all(log, NotedMachine(tmp_path), tmp_path)
    assert told(log, saves[0])["path"] == told(log, saves[2])["path"] == f"tinker://{M}/weights/a"
    assert "exists; choose another name, or send overwrite" in told(log, saves[1])["error"]
    assert told(log, saves[3])["error"].startswith("path: ")
    [kept] = log.all_weights("ann")
    assert Path(kept.place).is_dir()
    assert log.all_weights("ben") == []


def test_the_log_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    with closing(CommandLog(tmp_path / "new.sqlite")) as log:
        log._database.connection.execute("PRAGMA user_version = 99")
    with pytest.raises(LedgerVersionError, match="version 99, but this program supports 2: update the program"):
        CommandLog(tmp_path / "new.sqlite")


def test_a_file_from_before_the_meters_gets_them_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "commands.sqlite"
    with closing(sqlite3.connect(path)) as old:
        for statement in TABLES:
            old.execute(statement)
        old.execute("INSERT INTO client_sessions (id, owner, created_at) VALUES ('s', 'ann', 1)")
        old.execute("PRAGMA user_version = 1")
        old.commit()
    with closing(CommandLog(path)) as log:
        submit(log, 0, CREATE, create_body())
        train(log, 1)
        run_all(log, NotedMachine(tmp_path), tmp_path)
        assert log.usage.total() == Tokens(trained=1)


def test_tokens_count_as_trained_with_the_step_that_uses_their_gradient(log: CommandLog, tmp_path: Path) -> None:
    def counted() -> Tokens:
        run_all(log, NotedMachine(tmp_path), tmp_path)
        return log.usage.total(owner="ann")

    submit(log, 0, CREATE, create_body())
    submit(log, 1, PASS, pass_body(M, 1, [1, 2]))
    submit(log, 2, PASS, pass_body(M, 2, [1, 2, 3]))
    assert counted() == Tokens()
    submit(log, 3, STEP, step_body(M, 3))
    assert counted() == Tokens(trained=5)
    submit(log, 4, PASS, pass_body(M, 4, [1]))
    submit(log, 5, STEP, step_body(M, 5, 13.0))  # whose norm is infinite
    submit(log, 6, STEP, step_body(M, 6))
    assert counted() == Tokens(trained=5), "the gradient of a step that was not taken is dropped"
    submit(log, 7, PASS, pass_body(M, 7, [1, 2, 3, 4], forward_only=True))
    submit(log, 8, STEP, step_body(M, 8))
    assert counted() == Tokens(prefill=4, trained=5)
    submit(log, 9, SAVE, json.dumps({"model_id": M, "seq_id": 9, "path": "a"}).encode())
    submit(log, 10, PASS, pass_body(M, 10, [1]))
    load = {"path": f"tinker://{M}/weights/a", "optimizer": True, "model_id": M, "seq_id": 11}
    submit(log, 11, LOAD, json.dumps(load).encode())
    submit(log, 12, STEP, step_body(M, 12))
    assert counted() == Tokens(prefill=4, trained=5), "loading drops the gradient"
    [day] = log.usage.days("", "9")
    assert day.owner == "ann"


def test_a_pass_over_a_quota_fails_at_once_and_what_was_paid_for_is_repeated(log: CommandLog, tmp_path: Path) -> None:
    def check(owner: str) -> None:
        if log.usage.total(owner=owner).trained:
            raise UserError(f"the key {owner!r} has used its 1 trained tokens")

    writes: list[str] = []

    def no_snapshot(deed: str) -> None:
        if deed == "write" and (writes.append(deed) or len(writes) > 1):
            raise CheckpointError("the disk is full")

    submit(log, 0, CREATE, create_body())
    train(log, 1)
    late = [submit(log, 3, PASS, pass_body(M, 3)), submit(log, 4, STEP, step_body(M, 4))]
    saved = submit(log, 5, SAVE, json.dumps({"model_id": M, "seq_id": 5, "path": "a"}).encode())
    machine = NotedMachine(tmp_path, no_snapshot)
    run_all(log, machine, tmp_path, check_quota=check)
    assert told(log, late[0]) == {"error": "the key 'ann' has used its 1 trained tokens", "category": "user"}
    assert "a pass before it failed (the key 'ann' has used" in told(log, late[1])["error"]
    assert told(log, saved)["path"] == f"tinker://{M}/weights/a"
    assert machine.models[M] == [["create", 4, 1], ["pass", [[1]]], ["step", 0.1]]
    again = NotedMachine(tmp_path)
    run_all(log, again, tmp_path, check_quota=check)
    assert again.models[M] == machine.models[M]


def test_ids_of_a_pass_are_not_changed_on_the_way(log: CommandLog, tmp_path: Path) -> None:
    submit(log, 0, CREATE, create_body())
    ids = np.random.default_rng(0).integers(0, 100, 30).tolist()
    submit(log, 1, PASS, pass_body(M, 1, ids))
    machine = NotedMachine(tmp_path)
    run_all(log, machine, tmp_path)
    assert machine.models[M][-1] == ["pass", [ids]]
