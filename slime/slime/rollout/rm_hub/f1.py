"""``--rm-type f1``: overlap of words between reply and label, as in SQuAD (Rajpurkar et al. 2016, arXiv:1606.05250)."""

from __future__ import annotations

import re
import string
from collections import Counter

from slime.args import Arguments
from slime.rollout.rm_hub.extraction import whole
from slime.rollout.rm_hub.grader import Grader, needs_label, references
from slime.utils.types import Sample

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
# Yes/no answers are right or wrong, without partial credit.
_CLOSED = {"yes", "no", "noanswer"}


def words(text: str) -> list[str]:
    """Return lower-case words without punctuation and articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def f1_score(reply: str, label: str) -> float:
    """Return the harmonic mean of precision and recall of the reply's words, 0 to 1."""
    result, expected = words(reply), words(label)
    if result == expected:
        return 1.0
    if _CLOSED & {" ".join(result), " ".join(expected)}:
        return 0.0
    common = (Counter(result) & Counter(expected)).total()
    return 2 * common / (len(result) + len(expected)) if common else 0.0


async def _compare(args: Arguments, sample: Sample, answer: str) -> float:
    return max(f1_score(answer, label) for label in references(sample))


GRADER = Grader(extract=whole, compare=_compare, wrong=0.0, check=needs_label)
