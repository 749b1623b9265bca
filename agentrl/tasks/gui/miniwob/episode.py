"""Starts a task in its page, and reads what the page says of it.

Guarantees: the task is the seed's alone. It ends by the agent's doing, not by the page's clock of ten seconds. Once it has
ended the page begins no other one, so a second try cannot count. Only the page's own verdict is read, and only while the
page is the one that was opened.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

from agentrl.exceptions import InfraError
from agentrl.protocol import Verdict
from agentrl.tasks.gui.browser.interface import Page, Screen

SCREEN = Screen(width=160, height=210, scale=2, window=(500, 320))
"""The part of the page that holds the task; the rest shows rewards."""
HIDDEN = ("reward-display", "sync-task-cover", "click-canvas", "query")
"""Elements that are not part of the task; the query is the instruction."""
OPEN_SECONDS, POLL_SECONDS = 20.0, 0.02
DAY_MS = 86_400_000
LOADED = """(document.readyState === 'complete' && location.href === %s && typeof core === 'object'
    && core.cover_div !== null && WOB_TASK_READY)"""
BEGIN = """(() => {
  core.EPISODE_MAX_TIME = %d;
  Math.seedrandom(%s);
  core.startEpisodeReal();
  core.startEpisode = () => {};
  core.hideDisplay();
  return core.getUtterance();
})()"""
STATE = """(() => typeof core === 'undefined' || typeof WOB_DONE_GLOBAL === 'undefined' ? {href: location.href} : {
  href: location.href, done: WOB_DONE_GLOBAL, reward: WOB_RAW_REWARD_GLOBAL, running: core.EP_TIMER !== null})()"""


@dataclass(frozen=True)
class State:
    """What a page says of its task.

    Attributes:
        here: whether the page is the task's.
        running: whether the task has begun and not ended.
        done: whether it has ended.
        reward: from -1 to 1, of a task that has ended.
    """

    here: bool
    running: bool
    done: bool
    reward: float

    def verdict(self) -> Verdict:
        """Return the judgement: the share of the task that is right, 0 unless it has ended."""
        if not self.here:
            return Verdict(status="task_failed", score=0.0, detail="the agent left the task's page")
        score = min(max(self.reward, 0.0), 1.0) if self.done else 0.0
        detail = f"the page says {self.reward:g}" if self.done else "the page did not see the task done"
        return Verdict(status="ok" if score >= 1 else "task_failed", score=score, detail=detail)


async def start(page: Page, url: str, seed: str) -> str:
    """Open a task's page and start the task; return its instruction.

    Raises:
        InfraError: the page does not load, or does not start the task.
    """
    await page.show(SCREEN)
    await page.send("Page.navigate", {"url": "about:blank"})
    answer = await page.send("Page.navigate", {"url": url})
    if answer.get("errorText"):
        raise InfraError(f"the reset failed: {url} is not there ({answer['errorText']})", code="reset_failed")
    deadline = asyncio.get_running_loop().time() + OPEN_SECONDS
    while not await page.evaluate(LOADED % json.dumps(url)):
        if asyncio.get_running_loop().time() > deadline:
            raise InfraError(f"the reset failed: {url} did not load within {OPEN_SECONDS:g} s", code="reset_failed")
        await asyncio.sleep(POLL_SECONDS)
    instruction = await page.evaluate(BEGIN % (DAY_MS, json.dumps(seed)))
    state = await read(page, url)
    if not instruction or not state.here or not state.running or state.done:
        raise InfraError(f"the reset failed: {url} did not start its task", code="reset_failed")
    return str(instruction)


async def read(page: Page, url: str) -> State:
    """Return what the page says of the task that `start` began at ``url``.

    Raises:
        InfraError: the browser is gone.
    """
    said = await page.evaluate(STATE)
    here = str(said["href"]).partition("#")[0] == url and "done" in said
    if not here:
        return State(here=False, running=False, done=False, reward=0.0)
    return State(here=True, running=said["running"], done=said["done"], reward=float(said["reward"] or 0.0))
