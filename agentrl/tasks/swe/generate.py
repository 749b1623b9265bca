"""A generated instance from its name, ``swe/FAMILY/SPLIT/NUMBER``, and the files of its repository.

Guarantee: a name always gives the same instance, byte for byte; see `agentrl.tasks.names`.
"""

from __future__ import annotations

from agentrl.exceptions import ConfigError
from agentrl.tasks.harbor import File, Files
from agentrl.tasks.names import SEEDS_PER_SPLIT, SPLITS, Split, parts_of, random_of
from agentrl.tasks.swe.diffs import diff_of
from agentrl.tasks.swe.draft import HIDDEN, Draft
from agentrl.tasks.swe.families import EASY, FAMILIES
from agentrl.tasks.swe.instance import Grading, Instance

KIND = "swe"
TASKS_PER_FAMILY = {"train": 20, "heldout": 5}
EASY_PER_FAMILY = {"train": 200, "heldout": 20}
EVERY = {**FAMILIES, **EASY}


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
    parts = parts_of(KIND, name)
    if parts is None or parts[0] not in EVERY:
        raise ConfigError(
            f"there is no task {name!r}; write swe/FAMILY/SPLIT/NUMBER with a split of {', '.join(SPLITS)}, a number "
            f"below {SEEDS_PER_SPLIT} and a family of {', '.join(EVERY)}"
        )
    family, split, number = parts
    return EVERY[family](random_of(family, split, number))


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
        gold=diff_of(draft.broken(), draft.working()),
    )
    return Instance(name, f"generated/{draft.package}", "base", statement, grading, benchmark="generated")


def files_of(name: str) -> Files:
    """Return the files of a generated instance's repository, as the agent gets them."""
    return {path: File(text.encode()) for path, text in draft_of(name).broken().items()}
