"""A pytest plugin for swebench's own tests: it writes what its graders and parsers got and returned, one JSON object a line.

``SWEBENCH_AT`` is the folder that swebench is imported from, ``SWEBENCH_OUT`` the file. Packages that swebench imports and that nothing here uses
are stood in for.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentrl.tasks.swe.external import BARE


class StandIn(types.ModuleType):
    """A package of which names are only imported."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__call__": lambda self, *a, **k: None})


for missing in ("datasets", "docker", "docker.errors", "docker.models", "docker.models.containers", "modal"):
    sys.modules[missing] = StandIn(missing)
sys.modules["dotenv"] = types.ModuleType("dotenv")
sys.modules["dotenv"].load_dotenv = lambda *a, **k: None  # pyright: ignore[reportAttributeAccessIssue]
sys.path.insert(0, os.environ["SWEBENCH_AT"])
exec(BARE)
from swebench.harness import grading, log_parsers  # noqa: E402  # pyright: ignore[reportMissingImports]

OUT = Path(os.environ["SWEBENCH_OUT"]).open("a")  # noqa: SIM115


def recorded(kind: str, function: Callable[..., Any], told: Callable[..., dict[str, Any]]) -> Callable[..., Any]:
    """Return a function that writes ``told(result, *arguments)`` of each call."""

    @functools.wraps(function)
    def call(*values: Any, **named: Any) -> Any:
        result = function(*values, **named)
        OUT.write(json.dumps({"kind": kind, **told(result, *values, **named)}) + "\n")
        OUT.flush()
        return result

    return call


def told_log(result: Any, spec: Any, path: str) -> dict[str, Any]:
    return {"parser": spec.log_parser, "log": Path(path).read_text(), "statuses": result[0], "found": result[1]}


def told_parse(name: str) -> Callable[..., dict[str, Any]]:
    return lambda result, log, test_spec=None: {"parser": name, "log": log, "statuses": result}


def told_tests(result: Any, statuses: Any, gold: Any, **named: Any) -> dict[str, Any]:
    kind = named["eval_type"].value if "eval_type" in named else "pass_and_fail"
    wanted = {name: list(gold[name]) for name in ("FAIL_TO_PASS", "PASS_TO_PASS")}
    return {"statuses": statuses, "type": kind, "wanted": wanted, "report": {name: result[name] for name in wanted}}


def told_case(result: Any, case: str, statuses: Any) -> dict[str, Any]:
    return {"case": case, "statuses": statuses, "result": result}


grading.get_logs_eval = recorded("log", grading.get_logs_eval, told_log)
grading.get_eval_tests_report = recorded("tests", grading.get_eval_tests_report, told_tests)
for name in ("test_passed", "test_maintained", "test_failed"):
    setattr(grading, name, recorded(name, getattr(grading, name), told_case))
for name, function in list(log_parsers.PARSER_REGISTRY.items()):
    wrapped = recorded("parser", function, told_parse(name))
    log_parsers.PARSER_REGISTRY[name] = wrapped
    for place in (log_parsers, sys.modules[function.__module__]):
        setattr(place, name, wrapped)
