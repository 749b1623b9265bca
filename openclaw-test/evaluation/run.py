"""Asks a model all cases of all suites, and writes each result as soon as it is there.

Guarantees: a suite that cannot run does not stop the others. A server that is gone stops everything, with what is done kept.
Cases that are already in the results are not asked again.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from evaluation.case import Case, EvalError, Grade, Suite, SuiteError
from evaluation.figures import grouped
from evaluation.records import Results, record
from evaluation.talk import ContextError, Policy, ServerError
from openclaw.judge.client import together

CONTEXT = "context_too_short"
LINES = 10
"""Progress lines per suite where no terminal shows a bar."""


@dataclass(frozen=True)
class Plan:
    """How much is asked: problems per suite and seed, tries per problem, and requests at a time."""

    seeds: Sequence[int]
    problems: int
    samples: int
    parallel: int

    def cases(self, suite: Suite) -> list[tuple[Case, int]]:
        """Return every case of a suite with the number of its try."""
        return [
            (case, sample)
            for seed in self.seeds
            for case in suite.cases(seed, self.problems)
            for sample in range(self.samples)
        ]

    def left(self, suite: Suite, results: Results) -> list[tuple[Case, int]]:
        """Return those that have no result yet."""
        done = results.done()
        return [(case, sample) for case, sample in self.cases(suite) if (case.id, sample) not in done]


class Meter:
    """Shows how far a suite is: a bar in a terminal, else some lines."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def suite(self, name: str, total: int, done: int) -> Iterator[Meter]:
        """Show one suite."""
        self._name, self._total, self._done = name, total, done
        columns = (TextColumn("{task.description:>14}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._console, disable=not self._console.is_terminal) as progress:
            bar = progress.add_task(name, total=total, completed=done)
            self._advance = lambda: progress.advance(bar)
            yield self

    def step(self) -> None:
        """Count one case."""
        self._done += 1
        self._advance()
        every = max(1, self._total // LINES)
        if not self._console.is_terminal and (self._done % every == 0 or self._done == self._total):
            self._console.print(f"{self._name}: {self._done} of {self._total}", highlight=False)


async def evaluate(
    policy: Policy, suites: Sequence[Suite], plan: Plan, results: Results, meter: Meter
) -> dict[str, str]:
    """Ask what is not yet in the results; return why a suite could not run, by its name.

    Raises:
        EvalError: the server is gone or refuses everything.
    """
    not_run: dict[str, str] = {}
    run = uuid.uuid4().hex[:8]
    slots = asyncio.Semaphore(plan.parallel)
    for suite in suites:
        todo = plan.left(suite, results)
        if not todo:
            continue
        try:
            await _suite(policy, suite, todo, len(plan.cases(suite)), results, meter, slots, run)
        except SuiteError as error:
            not_run[suite.name] = str(error)
        except ServerError as error:
            if error.fatal:
                raise EvalError(str(error)) from error
            not_run[suite.name] = str(error)
    return not_run


def too_long(results: Results) -> dict[str, str]:
    """Return the suites of which no case fits the model's context, with what to do."""
    return {
        name: f"no case fits the model's context ({result[0].detail}); serve it with a larger CONTEXT_LENGTH, or write a smaller "
        "--max-tokens"
        for name, result in grouped(results.records, "suite").items()
        if all(item.reason == CONTEXT for item in result)
    }


async def _suite(
    policy: Policy,
    suite: Suite,
    todo: Sequence[tuple[Case, int]],
    total: int,
    results: Results,
    meter: Meter,
    slots: asyncio.Semaphore,
    run: str,
) -> None:
    await suite.open()
    try:
        with meter.suite(suite.name, total, total - len(todo)) as shown:

            async def one(case: Case, sample: int) -> None:
                async with slots:
                    talk = policy.talk(f"eval-{run}-{case.id}-{sample}".replace("/", "-"))
                    try:
                        grade = await suite.play(case, talk)
                    except ContextError as error:
                        grade = Grade(CONTEXT, str(error))
                results.add(record(case, sample, grade, talk))
                shown.step()

            await together(*(one(case, sample) for case, sample in todo))
    finally:
        await suite.close()
