"""A pytest plugin that runs each test of a list under mutated flags, all in one process.

Guarantees: a test that fails under a mutation counts only if it passes without it right afterwards, so neither a failing
test nor one that an earlier mutation broke counts. Fixtures live as long as one run of a test, those of the session excepted.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tests.flag_mutations.ineffective import Mutation, ignore, install

JOBS, FOUND = "FLAG_MUTATION_JOBS", "FLAG_MUTATION_FOUND"


@dataclass(frozen=True)
class Job:
    """A flag, and the tests that may notice that it has no effect: the first that does is enough."""

    flag: str
    attribute: str
    where: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """What one run of a test said."""

    passed: bool
    skipped: bool = False
    why: str = ""


class _Between:
    """Stands for the next test: its fixtures are those of the session, so all others end."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session

    def listchain(self) -> list[Any]:
        return [self._session]


class Worker:
    """Runs the jobs instead of pytest's own loop, and writes a line of JSON per step to the file of what was found."""

    def __init__(self, jobs: list[Job], found: Path) -> None:
        self._jobs, self._found = jobs, found
        self._reports: list[pytest.TestReport] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: Any, nextitem: Any) -> bool:
        if hasattr(item, "_initrequest"):
            item._initrequest()
        self._reports = runtestprotocol(item, nextitem=nextitem, log=False)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for job in self._jobs:
            for line in self._lines(session, job):
                self._write({"flag": job.flag, **line})
        return True

    def _lines(self, session: pytest.Session, job: Job) -> Iterator[dict[str, Any]]:
        start, seen, doubts = time.perf_counter(), [], []
        for node in job.nodes:
            items = _items_of(session, node, job)
            for item in items:
                yield {"step": "start", "node": item.nodeid}
                outcome = self._run(item, Mutation(job.attribute, job.where))
                seen.append(outcome)
                if outcome.passed or outcome.skipped:
                    continue
                yield {"step": "check", "node": item.nodeid}
                if self._run(item, None).passed:
                    seconds = round(time.perf_counter() - start, 2)
                    yield {"step": "noticed", "node": item.nodeid, "why": outcome.why, "seconds": seconds}
                    return
                doubts.append(item.nodeid)
        state = "unsure" if doubts else "unnoticed" if any(not each.skipped for each in seen) else "skipped"
        yield {"step": state, "node": (doubts or [""])[0], "seconds": round(time.perf_counter() - start, 2)}

    def _run(self, item: pytest.Item, mutation: Mutation | None) -> Outcome:
        ignore(mutation)
        _end_fork_server()
        try:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=_Between(item.session))
        finally:
            ignore(None)
        bad = [report for report in self._reports if report.failed]
        skipped = any(report.skipped for report in self._reports)
        return Outcome(passed=not bad and not skipped, skipped=skipped and not bad, why=_reason(bad))

    def _write(self, line: dict[str, Any]) -> None:
        with self._found.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _end_fork_server() -> None:
    """The next test's processes are forked from a server that has this run's environment."""
    forkserver._forkserver._stop()  # pyright: ignore[reportAttributeAccessIssue]


def _items_of(session: pytest.Session, node: str, job: Job) -> list[pytest.Item]:
    """Return the cases of a test, those that name the flag first."""
    items = [item for item in session.items if item.nodeid.split("[", 1)[0] == node]
    names = (job.flag, job.attribute)
    return sorted(items, key=lambda item: not any(name in item.nodeid.partition("[")[2] for name in names))


def _reason(reports: list[pytest.TestReport]) -> str:
    if not reports:
        return ""
    crash = getattr(reports[0].longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(reports[0].longrepr)
    where = f"{Path(crash.path).name}:{crash.lineno}: " if crash is not None else ""
    return where + next(iter(text.strip().splitlines()), "")[:160]


def as_json(jobs: list[Job]) -> str:
    """Return the text that the worker of another process reads."""
    return json.dumps([asdict(job) for job in jobs])


def pytest_configure(config: pytest.Config) -> None:
    """Replace pytest's loop when the driver has left jobs."""
    if JOBS not in os.environ:
        return
    jobs = [Job(**{**job, "nodes": tuple(job["nodes"])}) for job in json.loads(Path(os.environ[JOBS]).read_text())]
    install()
    config.pluginmanager.register(Worker(jobs, Path(os.environ[FOUND])))
