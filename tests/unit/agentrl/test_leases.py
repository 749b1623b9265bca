"""The guarantees of a lease, the same in this process and over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentrl.client import Episode, episode
from agentrl.exceptions import (
    AgentError,
    CapacityError,
    DeadlineError,
    InfraError,
    InternalError,
    InvalidError,
    NotFoundError,
)
from agentrl.protocol import Released, Verdict
from lab.testkit.agent_pools import Build, World, acting, asked, judging, renewing, resetting, until


@pytest.mark.parametrize("kind", ["in_process", "http"])
class TestBothClients:
    @pytest.fixture
    async def world(self, build: Build, kind: str) -> World:
        return await build(kind)

    async def test_an_episode(self, world: World) -> None:
        async with episode(world.client, "plain") as lent:
            assert (await lent.reset(seed=7)).text == "plain 7"
            assert (await lent.step({"do": "click"})).observation.text == "1: click"
            result = await lent.step({"do": "finish"})
            assert result.done
            assert await lent.evaluate() == Verdict(status="ok", score=1.0, passed=2, total=2)
        await until(lambda: world.script.count("close") == 1)
        await until(lambda: world.pool._capacity.used_slots == 0)
        with pytest.raises(NotFoundError):
            await world.client.renew(lent.lease_id, renewing(5))

    async def test_a_repeated_seq_gets_the_stored_answer(self, world: World) -> None:
        lease = await world.leased()
        first = acting(2, "click")
        answers = [await world.client.step(lease, first) for _ in range(3)]
        assert answers[0] == answers[1] == answers[2]
        assert world.script.count("click") == 1
        assert world.metric("agentrl_replays_total", operation="step") == 2

    async def test_retries_while_the_first_runs_wait_for_it(self, world: World) -> None:
        lease = await world.leased()
        request = acting(2, "wait")
        tries = [asyncio.create_task(world.client.step(lease, request)) for _ in range(5)]
        await until(lambda: world.metric("agentrl_replays_total", operation="step") == 4)
        world.script.gate.set()
        answers = await asyncio.gather(*tries)
        assert len({answer.model_dump_json() for answer in answers}) == 1
        assert world.script.count("wait") == 1

    @pytest.mark.parametrize("seq", [1, 3, 9])
    async def test_only_the_next_seq_is_executed(self, world: World, seq: int) -> None:
        lease = await world.leased()
        with pytest.raises(InvalidError) as error:
            await world.client.step(lease, acting(seq, "click"))
        assert error.value.code == ("seq_reused" if seq == 1 else "seq_out_of_order")
        assert not error.value.executed
        assert world.script.count("click") == 0
        await world.client.step(lease, acting(2, "click"))

    async def test_an_old_answer_is_gone(self, world: World) -> None:
        lease = await world.leased()
        old = acting(2, "click")
        await world.client.step(lease, old)
        for seq in (3, 4):
            await world.client.step(lease, acting(seq, "more"))
        with pytest.raises(InvalidError, match="the next one is 5"):
            await world.client.step(lease, old)
        assert world.script.count("click") == 1

    async def test_operations_run_one_at_a_time_in_order(self, world: World) -> None:
        lease = await world.leased()
        first = asyncio.create_task(world.client.step(lease, acting(2, "wait")))
        await until(lambda: world.script.count("wait"))
        second = asyncio.create_task(world.client.step(lease, acting(3, "next")))
        last = asyncio.create_task(world.client.evaluate(lease, judging()))
        await until(lambda: world.pool._leases[lease]._verdict is not None)
        assert world.script.calls == ["reset", "wait"]
        world.script.gate.set()
        await asyncio.gather(first, second, last)
        assert world.script.calls == ["reset", "wait", "next", "evaluate"]

    async def test_evaluate_is_memoised(self, world: World) -> None:
        world.script.evaluation_waits = True
        lease = await world.leased()
        tries = [asyncio.create_task(world.client.evaluate(lease, judging())) for _ in range(3)]
        await until(lambda: world.metric("agentrl_replays_total", operation="evaluate") == 2)
        world.script.gate.set()
        verdicts = [*await asyncio.gather(*tries), await world.client.evaluate(lease, judging())]
        assert verdicts == [world.script.evaluation] * 4
        assert world.script.count("evaluate") == 1
        with pytest.raises(InvalidError, match="was evaluated"):
            await world.client.step(lease, acting(2, "click"))

    @pytest.mark.parametrize(
        ("do", "kind_of_error"),
        [
            ("infra", InfraError),
            ("raise", InternalError),
            ("cancel", InternalError),
            ("exit", InternalError),
            ("nothing", InternalError),
        ],
    )
    async def test_a_failed_environment_has_no_score(
        self, world: World, do: str, kind_of_error: type[AgentError]
    ) -> None:
        lease = await world.leased()
        request = acting(2, do)
        for _ in range(2):
            with pytest.raises(kind_of_error) as error:
                await world.client.step(lease, request)
            assert error.value.executed
        with pytest.raises(InfraError, match="take a new lease"):
            await world.client.step(lease, acting(3, "click"))
        verdict = await world.client.evaluate(lease, judging())
        assert (verdict.status, verdict.score) == ("infra_error", None)
        assert world.script.calls == ["reset", do]

    @pytest.mark.parametrize("raised", [InfraError("gone", code="gone"), ValueError("defect")])
    async def test_an_evaluation_that_fails_has_no_score(self, world: World, raised: Exception) -> None:
        world.script.evaluation = raised
        lease = await world.leased()
        verdict = await world.client.evaluate(lease, judging())
        assert (verdict.status, verdict.score) == ("infra_error", None)
        assert str(raised) in verdict.detail

    async def test_a_failed_task_is_no_infrastructure_failure(self, world: World) -> None:
        world.script.evaluation = Verdict(status="task_failed", score=0.0)
        verdict = await world.client.evaluate(await world.leased(), judging())
        assert (verdict.status, verdict.score) == ("task_failed", 0.0)

    @pytest.mark.parametrize("do", ["wait", "ignore cancellation"])
    async def test_an_operation_ends_at_its_deadline(self, world: World, do: str) -> None:
        lease = await world.leased()
        with pytest.raises(DeadlineError) as error:
            await world.client.step(lease, acting(2, do, timeout_s=0.05))
        assert not error.value.retryable
        assert world.script.count("cancelled") == (do == "wait")
        verdict = await world.client.evaluate(lease, judging())
        assert (verdict.status, verdict.score) == ("timeout", None)
        assert (await world.client.release(lease)).found

    async def test_an_evaluation_ends_at_its_deadline(self, world: World) -> None:
        world.script.evaluation_waits = True
        verdict = await world.client.evaluate(await world.leased(), judging(timeout_s=0.05))
        assert (verdict.status, verdict.score) == ("timeout", None)

    async def test_an_invalid_action_costs_nothing(self, world: World) -> None:
        async with episode(world.client, "plain") as lent:
            await lent.reset()
            with pytest.raises(InvalidError, match="use OK"):
                await lent.step({"do": "invalid"})
            assert (await lent.step({"do": "click"})).observation.text == "2: click"

    async def test_the_order_of_an_episode(self, world: World) -> None:
        lease = (await world.client.lease(asked())).lease_id
        with pytest.raises(InvalidError, match="never reset"):
            await world.client.step(lease, acting(1, "click"))
        with pytest.raises(InvalidError, match="never reset"):
            await world.client.evaluate(lease, judging())
        await world.client.reset(lease, resetting(2))
        await world.client.step(lease, acting(3, "finish"))
        with pytest.raises(InvalidError, match="is over"):
            await world.client.step(lease, acting(4, "click"))
        await world.client.reset(lease, resetting(5))
        await world.client.step(lease, acting(6, "click"))
        assert world.script.calls == ["reset", "finish", "reset", "click"]

    async def test_renew_status_and_release_wait_for_nobody(self, world: World) -> None:
        lease = await world.leased()
        step = asyncio.create_task(world.client.step(lease, acting(2, "wait")))
        await until(lambda: world.script.count("wait"))
        assert (await world.client.renew(lease, renewing(500))).expires_in_s == 500
        assert (await world.client.status()).leases == 1
        assert (await world.client.release(lease)).found
        with pytest.raises(NotFoundError, match="while the operation ran"):
            await step
        await until(lambda: world.pool._capacity.used_slots == 0)
        assert not (await world.client.release(lease)).found
        assert world.script.calls == ["reset", "wait", "cancelled", "close"]

    async def test_the_same_request_gets_the_same_lease(self, world: World) -> None:
        request = asked()
        leases = await asyncio.gather(*(world.client.lease(request) for _ in range(4)))
        assert len({lease.lease_id for lease in leases}) == 1
        assert (await world.client.status()).used == 1

    async def test_waiters_are_served_in_order(self, world: World) -> None:
        first, second = [await world.leased() for _ in range(2)]
        served: list[int] = []

        async def wait(number: int) -> None:
            lease = await world.client.lease(asked())
            served.append(number)
            await world.client.release(lease.lease_id)

        waiters = []
        for number in range(50):
            waiters.append(asyncio.create_task(wait(number)))
            await until(lambda number=number: world.pool._capacity.waiting == number + 1)
        assert (await world.client.status()).waiting == 50
        await world.client.release(first)
        await asyncio.gather(*waiters)
        assert served == list(range(50))
        await world.client.release(second)
        assert world.script.most_alive == 2

    async def test_a_waiter_whose_call_is_cancelled_leaves_the_queue(self, world: World) -> None:
        first, second = [await world.leased() for _ in range(2)]
        waiting = asyncio.create_task(world.client.lease(asked()))
        await until(lambda: world.pool._capacity.waiting == 1)
        waiting.cancel()
        await until(lambda: world.pool._capacity.waiting == 0)
        assert waiting.cancelled()
        assert await world.client.release("nobody") == Released(found=False)
        for lease in (first, second):
            await world.client.release(lease)
        await until(lambda: world.pool._capacity.used_slots == 0)
        assert world.metric("agentrl_leases_granted_total") == 2

    async def test_a_call_that_is_cancelled_at_once_leaves_nothing(self, world: World) -> None:
        request = asked()
        call = asyncio.create_task(world.client.lease(request))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await until(lambda: not world.pool._requests and world.pool._capacity.used_slots == 0)
        assert not (await world.client.release(request.request_id)).found

    async def test_a_granted_request_can_be_withdrawn(self, world: World) -> None:
        request = asked()
        lease = await world.client.lease(request)
        assert (await world.client.release(request.request_id)).found
        with pytest.raises(NotFoundError):
            await world.client.renew(lease.lease_id, renewing(5))

    async def test_a_full_pool_says_when_to_ask_again(self, world: World) -> None:
        for _ in range(2):
            await world.leased()
        for wait_s in (0.0, 0.02):
            with pytest.raises(CapacityError) as error:
                await world.client.lease(asked(wait_s=wait_s))
            assert error.value.code == "pool_is_full"
            assert error.value.retryable
            assert (error.value.retry_after_s or 0) >= 1
        assert world.metric("agentrl_leases_refused_total", code="pool_is_full") == 2

    async def test_a_task_that_never_fits_is_refused_at_once(self, world: World) -> None:
        with pytest.raises(CapacityError, match="2000 MiB") as error:
            await world.client.lease(asked("huge", wait_s=1000))
        assert error.value.code == "larger_than_pool"
        assert not error.value.retryable

    async def test_weights_are_admitted_before_slots_run_out(self, world: World) -> None:
        heavy = await world.leased(task_id="heavy")
        with pytest.raises(CapacityError):
            await world.client.lease(asked("heavy", wait_s=0))
        light = await world.leased(task_id="light")
        status = await world.client.status()
        assert (status.used_memory_mib, status.used_cpu) == (1000, 1.25)
        for lease in (heavy, light):
            await world.client.release(lease)
        await world.leased(task_id="heavy")

    async def test_a_lease_that_nobody_keeps_expires(self, world: World) -> None:
        lease = await world.leased(ttl_s=10)
        world.clock.now += 6
        await world.client.step(lease, acting(2, "click"))
        world.clock.now += 6
        assert world.pool.reap() == 0
        await world.client.renew(lease, renewing(20))
        world.clock.now += 19
        assert world.pool.reap() == 0
        world.clock.now += 1
        assert world.pool.reap() == 1
        with pytest.raises(NotFoundError):
            await world.client.step(lease, acting(3, "click"))
        await until(lambda: world.pool._capacity.used_slots == 0)
        assert world.metric("agentrl_leases_ended_total", why="expired") == 1

    async def test_an_expired_lease_is_gone_before_the_reaper_comes(self, world: World) -> None:
        lease = await world.leased(ttl_s=10)
        world.clock.now += 10
        with pytest.raises(NotFoundError):
            await world.client.renew(lease, renewing(20))

    async def test_an_operation_keeps_its_lease_until_its_deadline(self, world: World) -> None:
        lease = await world.leased(ttl_s=10)
        step = asyncio.create_task(world.client.step(lease, acting(2, "wait", timeout_s=100)))
        await until(lambda: world.script.count("wait"))
        world.clock.now += 99
        assert world.pool.reap() == 0
        world.script.gate.set()
        await step
        world.clock.now += 9
        assert world.pool.reap() == 0
        world.script.gate.clear()
        step = asyncio.create_task(world.client.step(lease, acting(3, "wait", timeout_s=100)))
        await until(lambda: world.script.count("wait") == 2)
        world.clock.now += 100
        assert world.pool.reap() == 1
        with pytest.raises(NotFoundError):
            await step

    async def test_what_does_not_exist(self, world: World) -> None:
        with pytest.raises(NotFoundError, match="no task '/etc/passwd'"):
            await world.client.lease(asked("/etc/passwd"))
        with pytest.raises(NotFoundError):
            await world.client.step("nobody", acting(1, "click"))

    async def test_a_reset_that_fails(self, world: World) -> None:
        lease = (await world.client.lease(asked("unmakable"))).lease_id
        with pytest.raises(InfraError, match="the image is missing"):
            await world.client.reset(lease, resetting())
        assert (await world.client.evaluate(lease, judging())).status == "infra_error"

    async def test_what_an_environment_raises_is_final(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        async def reset(*_: object) -> None:
            raise InvalidError("half of it is reset", code="mine", retryable=True)

        lease = await world.leased()
        monkeypatch.setattr(type(world.pool._leases[lease].environment), "reset", reset)
        request = resetting(2)
        for _ in range(2):
            with pytest.raises(InvalidError) as error:
                await world.client.reset(lease, request)
            assert (error.value.retryable, error.value.executed) == (False, True)
        assert (await world.client.evaluate(lease, judging())).status == "infra_error"

    async def test_an_episode_renews_its_lease_and_gives_it_back_after_an_error(self, world: World) -> None:
        async def fails() -> None:
            async with episode(world.client, "plain", ttl_s=0.03) as lent:
                world.clock.now += 0.02
                await until(lambda: world.pool._leases[lent.lease_id]._used == world.clock.now)
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            await fails()
        await until(lambda: world.pool._capacity.used_slots == 0)

    async def test_a_refused_operation_takes_no_seq(self, world: World) -> None:
        lent = Episode(world.client, await world.leased())
        with pytest.raises(InvalidError):
            await lent.reset()  # seq 1 was the fixture's
        assert lent._seq == 0
        with pytest.raises(ValueError, match="timeout_s"):
            await lent.step({"do": "click"}, timeout_s=-1)
        assert lent._seq == 0

    async def test_a_pool_that_ends_answers_who_waits(self, world: World) -> None:
        lease = await world.leased()
        await world.leased()
        calls: list[asyncio.Task[Any]] = [
            asyncio.create_task(world.client.lease(asked())),
            asyncio.create_task(world.client.step(lease, acting(2, "wait"))),
        ]
        await until(lambda: world.pool._capacity.waiting and world.script.count("wait"))
        assert await world.pool.stop(20) == 0
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(each) for each in found] == [InfraError, NotFoundError]
        with pytest.raises(InfraError, match="shutting down"):
            await world.client.lease(asked())
        assert not (await world.client.status()).ready
        assert world.script.count("close") == 2
