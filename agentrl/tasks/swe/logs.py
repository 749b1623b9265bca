"""The log of a test command, and the status of each test in it: in the format of swebench, with parsers for unittest and pytest.

A log has the output between two markers, and after them the exit status of the command. Guarantees: a log without an output, or one
whose exit status is not 0 although no test failed, has no statuses. `contradictions` names tests that the log calls both passed and failed,
which printed lines can do and real runs do not. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from agentrl.tasks.pytest_log import BAD, Status, results

Statuses = Mapping[str, Status]
Parser = Callable[[str], Statuses]
Lines = Callable[[str], Iterator[tuple[str, Status]]]
"""Yields the results in a part of a log."""
BEGIN, END, EXIT = ">>>>> Start Test Output", ">>>>> End Test Output", ">>>>> Test Exit Code"
UNUSABLE = (">>>>> Patch Apply Failed", ">>>>> Reset Failed", ">>>>> Tests Errored", ">>>>> Tests Timed Out")
"""Lines of other harnesses, which say that the tests did not run."""
RESULTS: Mapping[str, Status] = MappingProxyType(
    {"ok": "PASSED", "FAIL": "FAILED", "ERROR": "ERROR", "skipped": "SKIPPED", "unexpected success": "FAILED"}
)
UNITTEST = re.compile(r"^(.+?) \.\.\. (ok|FAIL|ERROR|skipped|unexpected success)\b", re.MULTILINE)


def log_of(output: str, exit_code: int | None) -> str:
    """Return the log of a command; None stands for one that was ended."""
    status = "" if exit_code is None else f"{EXIT}: {exit_code}\n"
    return f"{BEGIN}\n{output}\n{END}\n{status}"


def lines_of_unittest(log: str) -> Iterator[tuple[str, Status]]:
    """Yield the results in the log of `agentrl.tasks.swe.runner`, or of unittest's verbose runner."""
    for match in UNITTEST.finditer(log):
        yield match[1].strip(), RESULTS[match[2]]


def lines_of_pytest(log: str) -> Iterator[tuple[str, Status]]:
    """Yield the results in pytest's summary (``-rA``): of the whole id, and of its first word, as which data sets write it."""
    for name, status in results(log):
        yield name, status
        if (first := name.split(" ")[0]) != name:
            yield first, status


def failed_subtests(log: str) -> set[str]:
    """Return the tests of which pytest's summary says that a subtest failed."""
    return {
        name for line in log.split("\n") if line.startswith("SUB") for name, status in results(line) if status in BAD
    }


LINES: Mapping[str, Lines] = MappingProxyType({"unittest": lines_of_unittest, "pytest": lines_of_pytest})


def statuses_of(log: str, parse: Parser) -> Statuses | None:
    """Return the status of each test of a log, or None if the log tells of no run.

    Args:
        log: whole.
        parse: returns the statuses in an output.
    """
    if any(line in log for line in UNUSABLE) or BEGIN not in log or END not in log:
        return None
    result = parse(log.split(BEGIN)[1].split(END)[0]) or parse(log)
    exit_code = re.search(rf"{re.escape(EXIT)}:\s*(-?\d+)", log)
    failed = any(status in BAD for status in result.values())
    if not result or (exit_code and int(exit_code[1]) != 0 and not failed):
        return None
    return result


def contradictions(lines: Iterator[tuple[str, Status]]) -> set[str]:
    """Return the tests of which lines say both that they failed and that they did not."""
    seen: dict[str, set[bool]] = {}
    for name, status in lines:
        seen.setdefault(name, set()).add(status in BAD)
    return {name for name, kinds in seen.items() if len(kinds) > 1}
