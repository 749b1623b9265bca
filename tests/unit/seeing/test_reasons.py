"""Every reason in the code has a sentence, and a page and a person get the same one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from openclaw.config.runtime import HYGIENE_RULES
from openclaw.judge import hygiene, worker
from openclaw.ledger import episodes, records, sessions, turns
from openclaw.runs.reasons import REASONS, explain, in_words, reasons_of_methods
from openclaw.training import rollout
from tests.helpers.reasons import explained_constants, explained_reasons, stated_reasons

BY_NAME = {
    *(sessions.NO_NEXT_STATE, turns.REGENERATED, records.REDACTED, turns.SUPERSEDED),
    *(rollout.STALE, rollout.FUSE, worker.NO_QUORUM, worker.GAVE_UP),
    *(hygiene.DUPLICATE, hygiene.ASKS_BACK, *HYGIENE_RULES),
    *(records.EPISODE, records.OVER, episodes.FORGOTTEN, episodes.NO_TOKENS),
    *(episodes.NO_SIGNAL, episodes.STRAGGLER, episodes.REWARD_UNUSED, episodes.NO_REWARD),
}
NOT_OF_A_TURN = {"ok", "task_failed", "timeout"}


def test_every_reason_has_a_sentence(repository: Path) -> None:
    given = stated_reasons(repository) | explained_reasons(repository)
    assert given >= {"too_long", "judge_refused", "no_lesson", "superseded", "straggler", "infra_error"}
    tables = REASONS.keys(), reasons_of_methods().keys()
    assert set.intersection(*map(set, tables)) == set(), "one table has a reason"
    assert ({"side", "aborted"} | given | BY_NAME) - NOT_OF_A_TURN - set().union(*tables) == set()


def test_every_reason_of_the_page_has_a_sentence(repository: Path) -> None:
    page = (repository / "instructions" / "ledger.md").read_text()
    section = page.partition("## Why a turn is not trained")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert len(named) > 30
    assert named <= set(REASONS)


def test_a_row_is_made_of_sentences() -> None:
    for name, (sentence, remedy) in {**REASONS, **reasons_of_methods()}.items():
        assert sentence.endswith("."), name
        assert sentence[0].isupper(), name
        assert not remedy or remedy.endswith("."), name
    assert in_words("side").startswith(REASONS["side"].sentence)
    assert in_words("aborted") == "The client left before the reply ended."
    assert explain("no_lesson").sentence == "The session taught nothing."
    assert "'mine'" in explain("mine").sentence


def test_constants_are_found_by_their_docstrings() -> None:
    tree = ast.parse(
        'A = "x"\n"""Reason of a turn."""\nB = "no"\n"""Key."""\nC = "y"\nD, E = "z", "w"\n"""Reasons of it."""\n'
    )
    assert list(explained_constants(tree)) == ["x", "y", "z", "w"]
