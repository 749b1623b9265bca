"""Figures against cases computed by hand, and intervals against simulated models whose difference is known."""

from __future__ import annotations

import math
import re
import unicodedata
from dataclasses import replace
from decimal import Decimal
from random import Random

import pytest
from evaluation.answers import last_number
from evaluation.figures import comparison, mcnemar, paired_difference, suite_figures
from evaluation.records import Record
from evaluation.report import Evaluated, Report, as_markdown, block, code, table

ROW = Record(
    suite="retention", task="retention/a/1/0/0", family="a", level=1, seed=0, number=0, sample=0, passed=True, reason="passed",
    detail="", degenerate=False, malformed_calls=0, reply="7",
    messages=[{"role": "user", "content": "?"}, {"role": "assistant", "content": "7"}], seconds=1.0, tokens=4,
)  # fmt: skip


def rows(*passed: bool, tries: int = 1) -> list[Record]:
    return [
        replace(ROW, task=f"retention/a/1/0/{number // tries}", number=number // tries, sample=number % tries, passed=each,
                reason="passed" if each else "wrong")
        for number, each in enumerate(passed)
    ]  # fmt: skip


def test_the_figures_of_a_suite() -> None:
    records = [
        replace(row, seconds=float(number), degenerate=number == 0)
        for number, row in enumerate(rows(True, False, True, True))
    ]
    found = suite_figures(records)
    assert (found["score"], found["passed"], found["problems"]) == (0.75, 3, 4)
    assert (found["low"], found["high"]) == (0.3006, 0.9544)
    assert (found["degenerate"], found["failures"]) == (0.25, {"wrong": 1})
    assert (found["seconds_median"], found["seconds_p95"], found["tokens_per_second"]) == (1.5, 3.0, round(16 / 6, 1))


def test_tries_of_one_problem_do_not_make_the_interval_narrower() -> None:
    once, thrice = suite_figures(rows(True, False)), suite_figures(rows(*[True] * 3, *[False] * 3, tries=3))
    assert (once["low"], once["high"]) == (thrice["low"], thrice["high"])
    assert thrice["tries"] == 6


def test_mcnemar_by_hand() -> None:
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(5, 5) == 1.0
    assert mcnemar(6, 0) == 2 * 0.5**6
    assert mcnemar(1, 8) == mcnemar(8, 1) == 2 * (1 + 9) / 2**9


def test_the_paired_interval_is_that_of_bonett_and_price() -> None:
    n, n12, n21 = 50, 9, 2
    p12, p21 = (n12 + 1) / (n + 2), (n21 + 1) / (n + 2)
    margin = 1.959963985 * math.sqrt((p12 + p21 - (p12 - p21) ** 2) / (n + 2))
    mean, low, high = paired_difference([1.0] * n12 + [-1.0] * n21 + [0.0] * (n - n12 - n21))
    assert mean == pytest.approx(7 / 50)
    assert (low, high) == (pytest.approx(p12 - p21 - margin), pytest.approx(p12 - p21 + margin))
    _, low, high = paired_difference([0.0] * 16)
    assert low == -high < 0


@pytest.mark.parametrize(("gain", "loss"), [(0.3, 0.1), (0.05, 0.05), (0.02, 0.0)])
def test_the_paired_interval_covers_the_true_difference(gain: float, loss: float) -> None:
    rng, hits, rounds = Random(0), 0, 1000
    for _ in range(rounds):
        drawn = [
            1.0 if each < gain else -1.0 if each < gain + loss else 0.0 for each in (rng.random() for _ in range(32))
        ]
        _, low, high = paired_difference(drawn)
        hits += low <= gain - loss <= high
    assert hits / rounds > 0.93


def test_a_comparison_takes_common_problems_only() -> None:
    found = comparison(rows(True, True, False, True), rows(False, True, True))
    assert found is not None
    assert (found["problems"], found["gained"], found["lost"], found["difference"], found["p"]) == (3, 1, 1, 0.0, 1.0)
    tries = comparison(rows(True, False, True, True, tries=2), rows(False, False, True, True, tries=2))
    assert tries is not None
    assert (tries["difference"], tries["p"]) == (0.25, None)
    assert comparison(rows(True), []) is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7", "7"), ("It is 1,234.", "1234"), ("$3.50", "3.5"), (r"\boxed{12} as 3 * 4", "12"), ("from 5 to -5", "-5"),
        ("4−9 is −5", "-5"), ("no", None), ("a1 b2", None), ("so 3 and then 4.", "4"), ("", None),
    ],
)  # fmt: skip
def test_the_number_of_a_reply(text: str, number: str | None) -> None:
    assert last_number(text) == (None if number is None else Decimal(number))


HOSTILE = (
    "```\n# Score 1.000\n````text\n<script>alert(1)</script>\n![x](http://e.test/a.png) | a | b |\n"
    "[link](javascript:alert(1)) @someone https://e.test www.e.test\x1b[31m\u202eevil\u200b\r\n</code> &lt; \\| `x`"
)


def test_what_a_model_writes_stays_text() -> None:
    shown = block(HOSTILE, 5000)
    fence = shown.splitlines()[0].removesuffix("text")
    assert set(fence) == {"`"}
    assert [line for line in shown.splitlines() if line.startswith(fence)] == [f"{fence}text", fence]
    cell = code(HOSTILE, 5000)
    assert not set("|<>[]!`*_:@.\\#\n") & set(
        re.sub(r"&#\d+;|(?<=\d)\.(?=\d)", "", cell.removeprefix("<code>").removesuffix("</code>"))
    )
    for text in (shown, cell):
        assert not [each for each in text if each != "\n" and unicodedata.category(each) in ("Cc", "Cf")]
    assert table(["a"], [[cell]]).count("\n") == 2


def test_a_hostile_model_cannot_change_the_report() -> None:
    bad = replace(
        ROW, passed=False, reason="wrong", detail=HOSTILE,
        messages=[*ROW.messages, {"role": "assistant", "content": HOSTILE, "tool_calls": [{"function": {"name": HOSTILE, "arguments": HOSTILE}}]}],
    )  # fmt: skip
    page = as_markdown(Report({"model": HOSTILE}, Evaluated(HOSTILE, [bad], {"coding": HOSTILE})))
    fence = max(re.findall(r"^(`{3,})text$", page, re.MULTILINE), key=len)
    outside = re.sub(rf"^{fence}text$.*?^{fence}$", "", page, flags=re.DOTALL | re.MULTILINE)
    assert "<script" not in outside
    assert "](" not in outside
    assert "e.test" not in outside
    assert [line for line in outside.splitlines() if line.startswith("# ")] == [page.splitlines()[0]]


def test_numbers_and_addresses_stay_readable() -> None:
    assert code("0.891 at 127.0.0.1, e.test 3.") == "<code>0.891 at 127.0.0.1, e&#46;test 3&#46;</code>"
