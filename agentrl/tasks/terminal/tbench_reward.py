"""The verdict on a terminal-bench task: the share of pytest's tests that passed, by the last summary of the log.

It is computed in the pool, from what the tests printed and the status that the supervisor saw. Guarantees: 1 needs a test that passed, none that did
not, and status 0 of the test script. Printed lines alone never give it where the tests have a decoy (`agentrl.tasks.decoys`): whoever passes that
scores 0, and so does a log whose tests are not those of the files. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from agentrl.protocol import Verdict
from agentrl.tasks.harbor import Files
from agentrl.tasks.pytest_log import BAD, COLOR, Status, results
from agentrl.tasks.shell.controls import Control, Ran, key_of, keys_in

HEADER = re.compile(r"^=* ?short test summary info ?=*\r?$", re.MULTILINE)
COUNTED: tuple[Status, ...] = ("PASSED", "FAILED", "ERROR", "XFAIL")
MOST_DETAIL = 500


def statuses(log: str) -> Mapping[str, Status]:
    """Return the status of each test in the last summary of a log; skipped ones do not count."""
    plain = COLOR.sub("", log)
    headers = list(HEADER.finditer(plain))
    found: dict[str, Status] = {}
    for name, status in results(plain[headers[-1].end() :]) if headers else ():
        if status in COUNTED and found.get(name) not in BAD:
            found[name] = status
    return found


def share(log: str, status: int) -> float:
    """Return the share of passed tests; 0 if a summary without failures contradicts the status."""
    found = statuses(log)
    passed = sum(each == "PASSED" for each in found.values())
    return 0.0 if not found or (status != 0 and passed == len(found)) else passed / len(found)


def judge(tests: Files, ran: Ran, control: Control | None) -> Verdict:
    """Return the verdict on a run of the tests.

    Args:
        tests: the verifier's files.
        ran: what the tests printed, and how they ended.
        control: the run of the decoys; None if nothing in the tests can be changed.
    """
    if ran.result.timed_out or ran.result.exit_code is None:
        return Verdict(status="task_failed", score=0.0, detail="the tests did not end in time")
    log = _log(ran)
    score, found = share(log, ran.result.exit_code), statuses(log)
    detail = log.strip()[-MOST_DETAIL:]
    if control is not None and score:
        known = keys_in(tests)
        ours = {name for name in found if known.get(key_of(name), False) or ("[" not in name and key_of(name) in known)}
        passed = {name for name in ours if found[name] == "PASSED"}
        if why := _deceived(found, passed, control, score):
            score, detail = 0.0, why
        elif ours:
            score = len(passed) / len(found)
    return Verdict(status="ok" if score else "task_failed", score=score, detail=detail)


def _deceived(found: Mapping[str, Status], passed: set[str], control: Control, score: float) -> str:
    """Return why a run is not proof, by its control; empty if it may be one."""
    log = _log(control.ran)
    if not any(key_of(name) in control.failing for name in found):
        same = share(log, _status(control.ran)) >= score
        return "the tests pass with wrong expected values, too" if same else ""
    again = statuses(log)
    trapped = {key_of(name) for name in passed} & control.failing
    if any(status == "PASSED" and key_of(name) in trapped for name, status in again.items()):
        return "a test passes with a wrong expected value, too"
    if trapped and not any(status in BAD for status in again.values()):
        return "no test fails with wrong expected values"
    return ""


def _log(ran: Ran) -> str:
    return ran.result.output.decode(errors="replace")


def _status(ran: Ran) -> int:
    return 1 if ran.result.exit_code is None else ran.result.exit_code
