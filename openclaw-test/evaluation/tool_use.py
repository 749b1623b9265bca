"""The suite ``tool-use``: does the model call the right tools, with arguments that make sense, and use their results?

* ``calculate``: one to three operations on numbers too large to do without the tool
* ``look_up``: prices that only the tool knows, of one to three items
* ``chain``: the result of one tool is the argument of the next one; at higher levels the first call meets a busy tool
* ``state``: write, copy or swap values of a store; its content is graded, not what the model says
* ``restraint``: tools are there and nothing needs them; a call fails

Guarantees: tools run here (`evaluation.tool_worlds`). A malformed call is counted, answered with what to write, and does not
fail the case by itself; none of its reply is carried out. An answer without the call that it needs fails.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from random import Random

from word_problems.words import NAMES

from agentrl.protocol import JsonObject, Observation, StepResult, Verdict
from evaluation.answers import last_number
from evaluation.case import PASSED, Case, Family, Grade, Plain
from evaluation.talk import Talk
from evaluation.tool_turns import Ended, converse
from evaluation.tool_worlds import Name, World, calculate

MAX_REPLIES = 8
ITEMS = ("lamp", "teapot", "blanket", "kettle", "mirror", "basket", "clock", "drum", "ladder", "pillow")
VALUES = ("amber", "cobalt", "garnet", "indigo", "jasper", "maple", "onyx", "pearl")
SMALL_TALK = (
    ("Hello, how are you today?", "Thank you, that is all for now.", "Good morning!"),
    ("Write one sentence about the sea.", "Name three colors.", "Tell me a word that rhymes with house."),
    (
        "A friend calls herself a calculator because she is good at sums. Write her a one-line birthday greeting.",
        "Explain in one sentence what a price list is for.",
        "What does the word parcel mean? One sentence.",
    ),
)


@dataclass(frozen=True, slots=True)
class Job:
    """One job.

    Attributes:
        text: what the user asks.
        world: of the tools, as it is at the start.
        answer: number that the last reply has to give, if there is one.
        values: content of the store at the end.
        needs: tools that have to be used.
    """

    text: str
    world: World
    answer: int | None = None
    values: dict[str, int] | None = None
    needs: tuple[Name, ...] = ()


def draw_calculation(rng: Random, level: int) -> Job:
    """Return a calculation with ``level`` operations."""
    expression = str(rng.randint(100, 999))
    for step in range(level):
        sign = rng.choice("+-*") if step == 0 else rng.choice("+-")
        expression += f" {sign} {rng.randint(100, 999)}"
    text = f"What is {expression}? Use the calculator, and give the result as a number."
    return Job(text, World(("calculator",)), calculate(expression), needs=("calculator",))


def draw_prices(rng: Random, level: int) -> Job:
    """Return a question about the prices of ``level`` items."""
    prices = {item: rng.randint(11, 99) for item in rng.sample(ITEMS, 6)}
    chosen = list(prices)[:level]
    listed = " and ".join(f"one {item}" for item in chosen)
    text = (
        f"How much does {listed} cost{' together' if level > 1 else ''}? Look the price up, and answer with a number."
    )
    offered: tuple[Name, ...] = ("price",) if level == 1 else ("price", "calculator")
    return Job(text, World(offered, prices=prices), sum(prices[item] for item in chosen), needs=("price",))


def draw_chain(rng: Random, level: int) -> Job:
    """Return a question whose answer takes two tools; the first ``level - 1`` calls find them busy."""
    customers = {name.lower(): rng.randint(1000, 9999) for name in rng.sample(sorted(NAMES), 4)}
    parcels = {customer: rng.randint(2, 60) for customer in customers.values()}
    name = next(iter(customers))
    text = (
        f"How many parcels is the customer {name.capitalize()} waiting for? Find the customer number first. If a tool is "
        "busy, call it again. Answer with a number."
    )
    world = World(("customer_number", "waiting_parcels"), customers=customers, parcels=parcels, busy=level - 1)
    return Job(text, world, parcels[customers[name]], needs=("customer_number", "waiting_parcels"))


def draw_store(rng: Random, level: int) -> Job:
    """Return a change of the store: write one value, copy one, swap two."""
    first, second, other = rng.sample(VALUES, 3)
    values = {name: number for name, number in zip((first, second, other), rng.sample(range(10, 100), 3), strict=True)}
    new = rng.randint(100, 999)
    text, changes = {
        1: (f"Set the value {first} to {new}.", {first: new}),
        2: (f"Copy the value {first} to {second}, so that both are equal.", {second: values[first]}),
        3: (f"Swap the values {first} and {second}.", {first: values[second], second: values[first]}),
    }[level]
    world = World(("read_value", "write_value"), values=values)
    return Job(f"{text} Use the tools, and say when it is done.", world, values={**values, **changes})


def draw_small_talk(rng: Random, level: int) -> Job:
    """Return a message that needs no tool."""
    return Job(rng.choice(SMALL_TALK[level - 1]), World(("calculator", "price", "waiting_parcels")))


FAMILIES: dict[str, Family] = {
    "calculate": draw_calculation,
    "look_up": draw_prices,
    "chain": draw_chain,
    "state": draw_store,
    "restraint": draw_small_talk,
}


class Desk:
    """A job as an environment (`agentrl.rollout.play.Playable`), graded by its suite."""

    def __init__(self, job: Job) -> None:
        self._text, self.world = job.text, copy.deepcopy(job.world)

    async def reset(self, seed: int = 0, *, timeout_s: float) -> Observation:
        """Return what the user asks, and the tools."""
        return Observation(text=self._text, data={"tools": [*self.world.tools()]})

    async def step(self, action: JsonObject, *, timeout_s: float) -> StepResult:
        """Carry out a call, or end with a message.

        Raises:
            MalformedCall: the call makes no sense.
        """
        if "text" in action:
            return StepResult(observation=Observation(), done=True)
        return StepResult(observation=Observation(text=self.world.call(str(action["tool"]), action["arguments"])))

    async def evaluate(self, *, timeout_s: float) -> Verdict:
        """Return no grade: the suite looks at the last reply, too."""
        return Verdict(status="ok", score=0.0)


async def play(case: Case, talk: Talk) -> Grade:
    """Hold the conversation of a case and grade it."""
    job: Job = case.problem
    desk = Desk(job)
    ended = await converse(talk, desk, MAX_REPLIES)
    reason, detail = (ended.bound, "") if ended.bound else _verdict(job, desk.world, ended)
    return Grade(reason or PASSED, detail, ended.malformed)


def _verdict(job: Job, world: World, ended: Ended) -> tuple[str, str]:
    """Return reason and detail of a failure, or two empty texts."""
    said, malformed = ended.said, ended.malformed
    if not job.needs and job.values is None:
        if world.used or malformed:
            return "needless_call", f"called {', '.join(world.used) or 'a tool, malformed'}"
        return said.defect or "", ""
    missing = [name for name in job.needs if name not in world.used]
    if missing or (job.values is not None and not world.used):
        return ("malformed_call" if malformed else "no_call"), f"never used {', '.join(missing) or 'a tool'}"
    if job.values is not None and world.values != job.values:
        return "wrong_state", f"the store holds {world.values}, not {job.values}"
    if job.answer is not None and last_number(said.text) != job.answer:
        return said.defect or "wrong_answer", f"the reply gives {last_number(said.text)}, not {job.answer}"
    return "", ""


TOOL_USE = Plain("tool-use", FAMILIES, play)
