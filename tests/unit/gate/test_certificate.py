"""Every line of the certificate: green for a healthy update, red under its own fault, and unknown where nothing was measured."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from openclaw.config.runtime_variables import GateVariables
from openclaw.gate.certificate import CHECKS, EngineFacts, Facts, certify

BOUNDS = GateVariables()
BEFORE, UPDATED, BASE = [-1.0, -2.0, -3.0], [-0.99, -2.01, -3.02], [-1.5, -2.5, -3.5]
ENGINE = EngineFacts("http://one", BEFORE, "3", UPDATED, "4", "ab" * 32, BASE)
HEALTHY = Facts(
    loss_tokens=12.0,
    signal_share=0.5,
    gradients=[0.3, 0.2],
    update_rms=1e-6,
    judge_asked=8,
    judge_lost=4,
    serving="3",
    updated="4",
    trainer_serving=BEFORE,
    trainer_updated=UPDATED,
    digest="ab" * 32,
    engines=[ENGINE, replace(ENGINE, url="http://two")],
)


def engine(**changes: Any) -> dict[str, Any]:
    """The second of two engines has a fault."""
    return {"engines": [ENGINE, replace(ENGINE, url="http://two", **changes)]}


NOISY = [value + 1e-6 for value in BEFORE]
FAULTS: dict[str, list[Mapping[str, Any]]] = {
    "tokens": [{"loss_tokens": 0.0}],
    "advantages": [{"signal_share": 0.0}],
    "gradient": [{"gradients": [0.3, math.nan]}, {"gradients": [math.inf]}, {"gradients": [0.0, 0.0]}],
    "update": [{"update_rms": 0.0}, {"update_rms": math.nan}],
    "judge": [{"judge_lost": 5}],
    "options": [{"unread": ["--lr", "--gamma"], "unused": ["--lr"]}],
    "served": [engine(before=[0.0, -1.0, -2.0]), engine(version="2"), engine(before=[math.nan] * 3)],
    "digest": [engine(digest="cd" * 32), engine(digest=None)],
    "named": [engine(named=[0.0, -1.0, -2.0]), engine(named=[math.nan] * 3), engine(named_version="3")],
    "stale": [engine(named=BEFORE), engine(named=NOISY)],
    "base": [engine(named=BASE)],
}


def red(facts: Facts) -> set[str]:
    return {line.name for line in certify(facts, BOUNDS).lines if line.verdict == "red"}


def test_a_healthy_update_is_green_in_every_line() -> None:
    certificate = certify(HEALTHY, BOUNDS)
    assert {line.verdict for line in certificate.lines} == {"green"}
    assert (certificate.is_red, certificate.verdict, certificate.causes) == (False, "green", [])


@pytest.mark.parametrize("line", [check.name for check in CHECKS])
def test_a_line_turns_red_under_its_fault(line: str) -> None:
    for fault in FAULTS[line]:
        certificate = certify(replace(HEALTHY, **fault), BOUNDS)
        assert line in red(replace(HEALTHY, **fault)), fault
        assert certificate.is_red
        assert any(f"({line}: " in cause for cause in certificate.causes)
        kept = json.loads(json.dumps(certificate.to_dict()))
        assert kept["verdict"] == "red"
        assert any(f"({line})" in cause for cause in kept["causes"])


@pytest.mark.parametrize("line", ["tokens", "advantages", "gradient", "update", "judge", "options"])
def test_a_fault_of_the_trainer_colours_no_other_line(line: str) -> None:
    assert [red(replace(HEALTHY, **fault)) for fault in FAULTS[line]] == [{line}] * len(FAULTS[line])


def test_an_engine_with_the_base_or_the_adapter_before_is_named_by_its_own_line() -> None:
    """Both would pass the limit on the difference, which has to allow for other arithmetic."""
    assert red(replace(HEALTHY, **engine(named=BEFORE))) == {"stale"}
    near = [value - 0.001 for value in BEFORE]
    assert red(replace(HEALTHY, **engine(named=near, base=near))) == {"base"}


def test_what_was_not_measured_is_unknown() -> None:
    certificate = certify(Facts(), BOUNDS)
    assert {line.name for line in certificate.lines if line.verdict != "unknown"} == {"options"}
    assert not certificate.is_red


def test_a_flag_that_was_not_needed_yet_refuses_nothing() -> None:
    certificate = certify(replace(HEALTHY, unread=["--kl-loss-type"]), BOUNDS)
    [line] = [line for line in certificate.lines if line.name == "options"]
    assert (line.verdict, line.words) == ("unknown", "not read so far: --kl-loss-type")
    assert certificate.verdict == "green"


def test_whole_weights_have_neither_digest_nor_base() -> None:
    whole = replace(ENGINE, digest=None, base=())
    lines = {line.name: line.verdict for line in certify(replace(HEALTHY, digest=None, engines=[whole]), BOUNDS).lines}
    assert (lines["digest"], lines["base"], lines["named"], lines["stale"]) == ("unknown", "unknown", "green", "green")


def test_a_step_too_small_to_see_accuses_no_engine() -> None:
    assert red(replace(HEALTHY, trainer_updated=BEFORE, **engine(named=BEFORE))) == set()


def test_few_answers_of_a_judge_say_nothing() -> None:
    assert red(replace(HEALTHY, judge_asked=2, judge_lost=2)) == set()


def test_the_page_has_the_table(repository: Path) -> None:
    page = (repository / "instructions/certificate.md").read_text()
    rows = [re.sub(r"\s+", " ", row) for row in page.splitlines() if row.startswith("| `")]
    assert rows == [
        f"| `{check.name}` | {check.red} | {check.cause} | {check.remedy} | {check.threads} |" for check in CHECKS
    ]
