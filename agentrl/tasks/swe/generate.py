"""A generated instance from its name, ``swe/FAMILY/SPLIT/NUMBER``, and the files of its repository.

Guarantees: a name always gives the same instance, byte for byte; see `agentrl.tasks.names`. No solution of the split ``heldout`` adds and removes the
same lines as one of those for training. Each family but the easy ones has a mistake that only ``heldout`` has. An easy
mistake is one operator, so there the other words and the numbers of its line differ from the lines of the instances that a pool offers for training.
"""

from __future__ import annotations

from functools import cache

from agentrl.tasks.harbor import File, Files
from agentrl.tasks.names import Split, known_parts, parts_of, random_of
from agentrl.tasks.swe.contamination import changed
from agentrl.tasks.swe.diffs import diff_of
from agentrl.tasks.swe.draft import HIDDEN, Draft
from agentrl.tasks.swe.families import EASY, FAMILIES
from agentrl.tasks.swe.instance import Grading, Instance

KIND = "swe"
TASKS_PER_FAMILY = {"train": 20, "heldout": 5}
EASY_PER_FAMILY = {"train": 200, "heldout": 20}
EVERY = {**FAMILIES, **EASY}
MAX_DRAWS = 10_000
"""After which a family is taken to have nothing for a split; a fifth of the draws or more are good."""


def task_name(family: str, split: Split, number: int) -> str:
    """Return the name of an instance, such as ``swe/pages/train/7``."""
    return f"{KIND}/{family}/{split}/{number}"


def is_generated(name: str) -> bool:
    """Return whether a name has the form of a generated instance."""
    return parts_of(KIND, name) is not None


def draft_of(name: str) -> Draft:
    """Return the draft of a name.

    Raises:
        ConfigError: there is no such instance.
    """
    family, split, number = known_parts(KIND, name, lambda _: EVERY)
    random = random_of(family, split, number)
    for _ in range(MAX_DRAWS):
        draft = EVERY[family](random)
        if _is_of(draft, family, split):
            return draft
    raise ValueError(f"the family {family} has no mistake for the split {split}")


def _is_of(draft: Draft, family: str, split: Split) -> bool:
    """Return whether a split may have a draft."""
    if family in FAMILIES:
        return draft.mistake.held_out == (split == "heldout")
    return split == "train" or changed(solution_of(draft)) not in _trained(family)


@cache
def _trained(family: str) -> frozenset[str]:
    """Return what the solutions of an easy family's instances for training change."""
    offered = range(EASY_PER_FAMILY["train"])
    return frozenset(changed(solution_of(draft_of(task_name(family, "train", number)))) for number in offered)


def solution_of(draft: Draft) -> str:
    """Return the diff that mends a draft."""
    return diff_of(draft.broken(), draft.working())


def generate(name: str) -> Instance:
    """Return the instance of a name.

    Raises:
        ConfigError: there is no such instance.
    """
    draft = draft_of(name)
    statement = f"{draft.mistake.issue}\n\nThe code is in `{draft.path}`. Please fix it there; other behaviour must stay as it is.\n"
    grading = Grading(
        framework="unittest",
        command="",
        test_patch=diff_of({}, {HIDDEN: draft.hidden}),
        fail_to_pass=draft.fail_to_pass(),
        pass_to_pass=draft.pass_to_pass(),
        gold=solution_of(draft),
    )
    return Instance(name, f"generated/{draft.package}", "base", statement, grading, benchmark="generated")


def files_of(name: str) -> Files:
    """Return the files of a generated instance's repository, as the agent gets them."""
    return {path: File(text.encode()) for path, text in draft_of(name).broken().items()}
