# pyright: reportMissingImports=false, reportUntypedBaseClass=false
"""Plays episodes of an environment of `verifiers`; runs in that package's own virtual environment, and imports nothing of ours.

``python verifiers_worker.py NAME tasks`` prints the tasks and ends. ``python verifiers_worker.py NAME play`` reads questions
in lines of JSON and answers each in a line: ``{"reset": idx}``, ``{"step": text}``, ``{"evaluate": true}``. An answer to
the first two has ``messages``, which are new to the agent, and ``done``. A failure is ``{"error": text}``.

The environment runs as it always does: `Env.run_episode` with a model client. The model is a server on loopback in this
process; its requests wait for the next ``step``. Guarantees: what the environment prints goes to standard error. A command that
it would run on this machine is refused, since there is no sandbox here.
"""

from __future__ import annotations

import asyncio
import importlib.machinery
import inspect
import json
import os
import secrets
import sys
import types
from collections.abc import Callable
from typing import Any, NoReturn

MAX_TASKS = 1000
"""Of an environment that never ends."""
MODEL = "policy"
STOPPED = "evaluated_early"


class Refused(Exception):
    """The environment needs what this bridge does not have."""


def tools_of(env: Any) -> list[Any]:
    """Return the tool servers that an environment would start."""
    taskset = env.taskset
    return [*type(taskset).toolsets(taskset.config), *type(taskset).task_type().toolsets(taskset.config.task)]


def commands_of(task: Any) -> list[str]:
    """Return the names of the rewards and metrics that cannot do without a runtime."""
    hooks = [*task.hooks("reward"), *task.hooks("metric")]
    parameters = [(hook.__name__, inspect.signature(hook).parameters.get("runtime")) for hook in hooks]
    return [
        name for name, parameter in parameters if parameter is not None and parameter.default is inspect.Parameter.empty
    ]


def load(name: str) -> Any:
    """Return the environment ``name``, its only agent played by this process.

    Raises:
        Refused: it needs a sandbox, tools, a judge, or more than one agent.
    """
    import verifiers.v1 as vf
    from verifiers.v1.runtimes.subprocess import SubprocessRuntime

    kind = vf.env_config_type(name)
    roles = [role for role, field in kind.model_fields.items() if isinstance(field.default, vf.AgentConfig)]
    if len(roles) != 1:
        raise Refused(f"it has {len(roles)} agents ({', '.join(roles)}); this bridge plays one")
    if (own := vf.default_harness_id(name)) != "bash":
        raise Refused(f"it brings a harness of its own ({own}), which needs a sandbox of its own")
    pinned = kind.model_fields[roles[0]].default.harness
    if pinned is not None and pinned.id != "null":
        raise Refused(f"its agent needs the harness {pinned.id!r}, which needs a sandbox of its own")
    harness = {"id": plugin()}
    env = vf.load_environment(
        vf.resolve_env_config(
            {"taskset": {"id": name}, roles[0]: {"harness": harness, "runtime": {"type": "subprocess"}}}
        )
    )
    if type(env.taskset).task_type().NEEDS_CONTAINER:
        raise Refused("its tasks need a container")
    if tools := tools_of(env):
        raise Refused(f"it needs {len(tools)} tool servers ({type(tools[0]).__name__})")
    if env.taskset.config.task.judges:
        raise Refused("a judge, which needs a model and an API key, decides about its reward")
    for method in ("run", "open_process", "run_background"):
        setattr(SubprocessRuntime, method, _no_commands)
    return env


async def _no_commands(*_: Any, **__: Any) -> NoReturn:
    """Stand in for the methods that run a command on this machine."""
    raise Refused("it runs commands, which need a sandbox of its own")


def plugin() -> str:
    """Register the harness, which makes one model call per turn, and return its id."""
    import httpx
    import verifiers.v1 as vf
    from verifiers.v1.dialects.chat import message_to_wire

    class OneCall(vf.Harness[vf.HarnessConfig]):
        """A turn is one call of the model; the environment sees its reply."""

        APPENDS_SYSTEM_PROMPT = True
        SUPPORTS_RESUME = True
        EXECUTES_CODE = False
        NEEDS_CONTAINER = False

        async def launch(
            self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Any, data: Any
        ) -> Any:
            system, prompt = self.resolve_prompt(data)
            messages = [{"role": "system", "content": system}] if system else []
            if isinstance(prompt, str):
                messages.append({"role": "user", "content": prompt})
            else:
                messages += [message_to_wire(message) for message in prompt or []]
            async with httpx.AsyncClient(timeout=None, trust_env=False) as http:
                answer = await http.post(
                    f"{endpoint}/chat/completions",
                    json={"model": ctx.model, "messages": messages},
                    headers={"authorization": f"Bearer {secret}"},
                )
            return vf.ProgramResult(0 if answer.status_code == 200 else 1, "", answer.text)

    module = types.ModuleType("agentrl_one_call")
    module.OneCall = OneCall  # pyright: ignore[reportAttributeAccessIssue]
    module.__all__ = ["OneCall"]  # pyright: ignore[reportAttributeAccessIssue]
    OneCall.__module__ = module.__name__
    module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
    sys.modules[module.__name__] = module
    return module.__name__


def tasks(name: str) -> dict[str, Any]:
    """Return the tasks that can be played, up to `MAX_TASKS` of an environment that never ends."""
    env = load(name)
    taskset = env.taskset if env.taskset.bounded else env.taskset.take(MAX_TASKS)
    results = []
    for task in taskset:
        if task.data.image is not None:
            raise Refused(f"task {task.data.idx} needs the image {task.data.image}")
        if task.data.prompt is None:
            raise Refused(f"task {task.data.idx} has no prompt; a modelled user would open it")
        if needs := commands_of(task):
            raise Refused(f"{', '.join(needs)} of task {task.data.idx} need a sandbox of their own")
        results.append({"idx": task.data.idx, "name": task.data.name})
    return {"tasks": results}


class Play:
    """One episode after the other, of one environment."""

    def __init__(self, name: str) -> None:
        self._env = load(name)
        self._requests: asyncio.Queue[list[dict[str, Any]]] = asyncio.Queue()
        self._replies: asyncio.Queue[str | None] = asyncio.Queue()
        self._episode: asyncio.Task[Any] | None = None
        self._trace: Any = None
        self._seen = 0

    async def reset(self, idx: int) -> dict[str, Any]:
        """Begin task ``idx`` and return its prompt."""
        import verifiers.v1 as vf

        await self.stop()
        (task,) = self._env.taskset.include(idx=[str(idx)])
        self._requests, self._replies, self._seen = asyncio.Queue(), asyncio.Queue(), 0
        key = secrets.token_hex(16)
        os.environ["AGENTRL_MODEL_KEY"] = key
        client = vf.EvalClientConfig(base_url=await self._serve(key), api_key_var="AGENTRL_MODEL_KEY")
        context = vf.ModelContext(model=MODEL, client=client)

        async def run() -> Any:
            async with self._env.serving():
                return await self._env.run_episode(task, context, on_trace=self._note)

        self._episode = asyncio.create_task(run())
        return await self._next()

    async def step(self, text: str) -> dict[str, Any]:
        """Give the agent's reply and return what the environment says to it."""
        if self._episode is None or self._episode.done():
            raise Refused("the episode is over")
        self._seen += 1  # the reply, which the next request repeats
        self._replies.put_nowait(text)
        return await self._next()

    async def evaluate(self) -> dict[str, Any]:
        """Return the rewards; an episode that is not over is stopped, and judged as far as it went."""
        assert self._episode is not None
        if not self._episode.done():
            self._trace.stop(STOPPED)
            self._replies.put_nowait(None)
        episode = await self._episode
        self._check(episode)
        (trace,) = episode.traces
        rewards = {name: reward.value for name, reward in trace.rewards.items() if reward is not None}
        missing = [name for name, reward in trace.rewards.items() if reward is None]
        if missing or not rewards:
            raise Refused(
                f"no reward was computed ({', '.join(missing) or 'it has none'}); its scoring needs a sandbox"
            )
        metrics = {name: value for name, value in trace.metrics.items() if value is not None}
        return {"reward": trace.reward, "rewards": rewards, "metrics": metrics}

    async def stop(self) -> None:
        """End the episode under way."""
        if self._episode is not None:
            self._episode.cancel()
            await asyncio.wait({self._episode})
            await self._runner.cleanup()

    def _note(self, trace: Any) -> None:
        self._trace = trace

    async def _next(self) -> dict[str, Any]:
        """Wait for the environment's next request, or for the end of the episode."""
        assert self._episode is not None
        request = asyncio.create_task(self._requests.get())
        await asyncio.wait({request, self._episode}, return_when=asyncio.FIRST_COMPLETED)
        if not request.done():
            request.cancel()
            self._check(self._episode.result())
            return {"messages": [], "done": True}
        messages = request.result()
        new, self._seen = messages[self._seen :], len(messages)
        return {"messages": new, "done": False}

    @staticmethod
    def _check(episode: Any) -> None:
        """Raise Refused if the episode failed for a reason that is not the agent's."""
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        if errors:
            raise Refused(f"{errors[-1].type}: {errors[-1].message}")

    async def _serve(self, key: str) -> str:
        """Return the address of a model whose replies are the agent's."""
        from aiohttp import web

        async def complete(request: web.Request) -> web.Response:
            if request.headers.get("authorization") != f"Bearer {key}":
                return web.Response(status=401)
            body = await request.json()
            self._requests.put_nowait(body["messages"])
            text = await self._replies.get()
            if text is None:
                return web.json_response({"error": {"message": STOPPED}}, status=400)
            message = {"role": "assistant", "content": text}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
            results = {"id": "reply", "object": "chat.completion", "created": 0, "model": MODEL}
            return web.json_response({**results, "choices": [choice], "usage": usage})

        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/v1/chat/completions", complete)
        self._runner = web.AppRunner(app, handle_signals=False)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"


async def play(name: str, answer: Callable[[dict[str, Any]], None]) -> None:
    """Answer questions from standard input until it ends."""
    reader = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    game: Play | None = None
    while line := await reader.readline():
        question = json.loads(line)
        try:
            game = game or Play(name)
            if "reset" in question:
                answer(await game.reset(question["reset"]))
            elif "step" in question:
                answer(await game.step(question["step"]))
            else:
                answer(await game.evaluate())
        except Exception as error:  # noqa: BLE001 - whatever a foreign environment raises is an answer
            answer({"error": explained(error)})
    if game is not None:
        await game.stop()


def explained(error: BaseException) -> str:
    """Return what went wrong, in a line."""
    text = str(error) or type(error).__name__
    return text if isinstance(error, Refused) else f"{type(error).__name__}: {text}"


def main() -> None:
    """Command line."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    name, what = sys.argv[1:]

    def answer(found: dict[str, Any]) -> None:
        print(json.dumps(found), file=out, flush=True)

    if what == "play":
        asyncio.run(play(name, answer))
        return
    try:
        answer(tasks(name))
    except Exception as error:  # noqa: BLE001 - whatever a foreign package raises is an answer
        answer({"error": explained(error)})


if __name__ == "__main__":
    main()
