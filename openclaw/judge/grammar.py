r"""The grammar of a judge's answer: any text, then exactly one of the allowed boxes, then the end.

Guarantees: an answer that an engine sampled under the grammar, and did not cut off, has one box, which is its end. The
tags are those of xgrammar, SGLang's grammar back end.
"""

from __future__ import annotations

from functools import cache

import orjson

from openclaw.judge.answers import DECISIONS, SCORES
from openclaw.ledger.records import JudgeKind

BOXED = "\\boxed"


@cache
def answer_grammar(judge: JudgeKind) -> str:
    """Return the structural tag of the answers to one of the two questions."""
    values = SCORES if judge == "prm" else DECISIONS
    text = {"type": "tag", "begin": "", "content": {"type": "any_text", "excludes": [BOXED]}, "end": f"{BOXED}{{"}
    boxes = {"type": "or", "elements": [{"type": "const_string", "value": f"{value}}}"} for value in values]}
    tag = {"type": "structural_tag", "format": {"type": "sequence", "elements": [text, boxes]}}
    return orjson.dumps(tag).decode()
