"""New requests begin a few in each round of the event loop, in their order."""

from __future__ import annotations

import asyncio

from openclaw.gateway.limits import AT_ONCE, Admission


async def test_each_round_begins_a_few_in_their_order() -> None:
    admission, round_number, begun = Admission(), 0, []

    async def begin(number: int) -> None:
        await admission.enter()
        begun.append((number, round_number))

    requests = [asyncio.create_task(begin(number)) for number in range(3 * AT_ONCE + 1)]
    while not all(request.done() for request in requests):
        await asyncio.sleep(0)
        round_number += 1
    assert [number for number, _ in begun] == list(range(len(requests)))
    rounds = [at for _, at in begun]
    assert max(rounds.count(at) for at in rounds) == AT_ONCE
    await asyncio.sleep(0)
    await asyncio.wait_for(admission.enter(), 5)


async def test_a_request_that_leaves_the_queue_takes_nobody_s_turn() -> None:
    admission = Admission()
    requests = [asyncio.create_task(admission.enter()) for _ in range(3 * AT_ONCE)]
    await asyncio.sleep(0)
    waiting = [request for request in requests if not request.done()]
    assert waiting == requests[AT_ONCE:]
    for request in waiting[:-1]:
        request.cancel()
    async with asyncio.timeout(5):
        await waiting[-1]
        await admission.enter()
