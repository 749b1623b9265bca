"""The environment of tool tasks: calls of tools, a last message, and a verdict from outside of any sandbox.

Guarantees: the right answer and the state that is judged never enter a sandbox in which programs of the agent's run. Only the last message has an
answer. Calls bound themselves, and the environment says how long one may take, so a call that hangs is an observation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from pydantic import JsonValue

from agentrl.environment import Environment, Task, Weight
from agentrl.exceptions import InfraError, InvalidError
from agentrl.processes import Processes
from agentrl.protocol import JsonObject, Observation, StepResult, Verdict
from agentrl.sandbox.bubblewrap import Bubblewrap
from agentrl.sandbox.interface import Sandbox
from agentrl.tasks.names import SPLITS, Split
from agentrl.tasks.toolcall.config import ToolConfig, read_config
from agentrl.tasks.toolcall.draft import Draft, Tables
from agentrl.tasks.toolcall.generate import families_of, generate, task_name
from agentrl.tasks.toolcall.grading import answer_of, is_right
from agentrl.tasks.toolcall.prompts import opening_data
from agentrl.tasks.toolcall.rows import draft_of, tasks_of
from agentrl.tasks.toolcall.settings import ToolSettings
from agentrl.tasks.toolcall.toolbox import LIMITS, Toolbox
from agentrl.tasks.toolcall.tools.code import MAX_SECONDS
from agentrl.tasks.toolcall.tools.interface import Room, World, shown
from agentrl.tasks.toolcall.tools.sql import tables_of
from groundwork.exceptions import ConfigError

TASKS_PER_FAMILY = {"train": 1000, "heldout": 50}
PURE_WEIGHT = Weight(16, 0.05)
"""Of an episode without a sandbox."""
STEP_S = MAX_SECONDS + 120
"""After which a tool that still owes an answer has failed."""
HOW = 'an action is {"tool": NAME, "arguments": {...}}, or {"text": TEXT} with the answer'


class ToolCallEnvironment(Environment):
    """Generated tool tasks and those of ``TOOLCALL_DATA``, with the tools of ``TOOLS_CONFIG``."""

    provider = Bubblewrap()

    def __init__(self, processes: Processes) -> None:
        super().__init__(processes)
        self._draft: Draft | None = None
        self._world: World | None = None
        self._toolbox: Toolbox | None = None
        self._message: str | None = None
        self._calls = 0

    @classmethod
    def tasks(cls) -> Iterable[Task]:
        """Return the tasks whose tools the configuration has.

        Raises:
            ConfigError: a variable, the configuration or the data set is unusable.
        """
        settings, config = cls.settings(), cls.config()
        if settings.data is not None:
            rows = tasks_of(Path(settings.data))
            _keep_apart(Path(settings.data).resolve(), config)
            weights = weight_of(config, draft_of(rows[0].data, config.builtin).tools)
            return [Task(task.id, task.data, weights) for task in rows]
        return [
            Task(task_name(family, split, number), weight=weight)
            for split in SPLITS
            for family in offered(config, split)
            for weight in (weight_of(config, needs(family)),)
            for number in range(TASKS_PER_FAMILY[split])
        ]

    @classmethod
    def settings(cls) -> ToolSettings:
        """Return the variables of this process."""
        return ToolSettings.from_env()

    @classmethod
    def config(cls) -> ToolConfig:
        """Return the tools of this process."""
        settings = cls.settings()
        if settings.tools_config is None:
            return ToolConfig()
        return _config(Path(settings.tools_config).resolve(), settings.allowed_urls)

    def load(self, task: Task, config: ToolConfig) -> Draft:
        """Return the task that a lease names."""
        return draft_of(task.data, config.builtin) if task.data else generate(task.id)

    async def reset(self, task: Task, seed: int) -> Observation:
        """Begin; the seed changes nothing, because a task's name fixes everything."""
        await self.close()
        settings, config = self.settings(), self.config()
        draft = self._draft = self.load(task, config)
        toolbox = self._toolbox = Toolbox(config, draft.tools, self.processes.pool)
        self._world = World(dict(draft.store), draft.tables, self._start)
        self._message, self._calls, self._most_calls = None, 0, settings.max_calls
        await toolbox.prepare()
        await toolbox.open(self._world)
        return Observation(text=draft.question, data=opening_data(draft, toolbox.described, settings.actions, STEP_S))

    async def step(self, action: JsonObject) -> StepResult:
        """Call a tool, or end the episode with a message.

        Raises:
            InvalidError: the call makes no sense, or the tool failed; it says what to write.
            InfraError: a sandbox or server failed.
        """
        world, toolbox = self._begun()
        if set(action) == {"text"} and isinstance(action["text"], str):
            self._message = action["text"]
            return StepResult(observation=Observation(text="The task has ended."), done=True)
        name = action.get("tool")
        if set(action) != {"tool", "arguments"} or not isinstance(name, str):
            raise InvalidError(HOW, code="invalid_action")
        if self._calls >= self._most_calls:
            text = f"[no call is left: a task has {self._most_calls}]"
            return StepResult(observation=Observation(text=text), truncated=True)
        self._calls += 1
        return StepResult(observation=Observation(text=await toolbox.call(name, action["arguments"], world)))

    async def evaluate(self) -> Verdict:
        """Judge the last message and the state."""
        world, _ = self._begun()
        draft = self._draft
        assert draft is not None
        problems: list[str] = []
        if draft.answer is not None:
            answer = answer_of(self._message or "")
            if not await is_right(answer, draft.answer):
                problems.append("there is no answer" if answer is None else "the answer is wrong")
        if draft.final_store is not None and _as_text(world.store) != _as_text(draft.final_store):
            problems.append("the store is wrong")
        if draft.final_tables is not None and not same_tables(await tables_of(world), draft.final_tables):
            problems.append("the tables are wrong")
        detail = f"{'; '.join(problems) or 'right'}; calls: {self._calls}"
        return Verdict(status="task_failed" if problems else "ok", score=0.0 if problems else 1.0, detail=detail)

    async def close(self) -> None:
        """Leave servers and stop sandboxes."""
        if self._toolbox is not None:
            await self._toolbox.close()
            self._toolbox = None
        while self._world is not None and self._world.rooms:
            room = next(iter(self._world.rooms))
            await self._world.rooms[room].stop()
            del self._world.rooms[room]

    def _begun(self) -> tuple[World, Toolbox]:
        if self._world is None or self._toolbox is None:
            raise InfraError("the episode has not begun; reset it first", code="not_begun")
        return self._world, self._toolbox

    async def _start(self, room: Room) -> Sandbox:
        assert self.provider is not None
        assert self._toolbox is not None
        return await self.provider.start(self._toolbox.spec(room), self.processes)


def needs(family: str) -> Sequence[str]:
    """Return the built-in tools that a family's tasks have."""
    return generate(task_name(family, "heldout", 0)).tools


def offered(config: ToolConfig, split: Split) -> list[str]:
    """Return the families of a split whose tools a configuration has."""
    return [family for family in families_of(split) if set(needs(family)) <= config.builtin.keys()]


def weight_of(config: ToolConfig, names: Iterable[str]) -> Weight:
    """Return the weight of an episode with these built-in tools: all sandboxes that it may start."""
    tools = [*(config.builtin[name] for name in names), *config.own.values()]
    rooms: set[Room] = {tool.room for tool in tools if tool.room is not None}
    if any(server.command for server in config.servers):
        rooms.add("tools")
    weight = PURE_WEIGHT
    for room in rooms:
        weight += Weight(LIMITS[room].memory_mib + LIMITS[room].disk_mib, LIMITS[room].cpus / 2)
    return weight


def same_tables(found: Tables | None, expected: Tables) -> bool:
    """Return whether tables have the same rows, in any order."""
    return found is not None and _rows(found) == _rows(expected)


@cache
def _config(path: Path, allowed_urls: str) -> ToolConfig:
    return read_config(path, allowed_urls)


def _keep_apart(data: Path, config: ToolConfig) -> None:
    """Refuse a file with right answers in a folder that tools read.

    Raises:
        ConfigError: says what to do.
    """
    for mount in config.mounts:
        if data.is_relative_to(mount.host):
            raise ConfigError(
                f"TOOLCALL_DATA={data} has the right answers, and tools read {mount.host}; move it out, or name another folder "
                "in TOOLS_CONFIG"
            )


def _rows(tables: Tables) -> dict[str, list[list[tuple[str, str]]]]:
    return {
        name: sorted(sorted((column, shown(cell)) for column, cell in row.items()) for row in rows)
        for name, rows in tables.items()
    }


def _as_text(store: Mapping[str, JsonValue]) -> dict[str, str]:
    """Return a store whose values are text; a model may write a number either way."""
    return {
        key: shown(int(value) if isinstance(value, float) and value.is_integer() else value)
        for key, value in store.items()
    }
