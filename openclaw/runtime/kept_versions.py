"""Which versions of a run's weights are kept, and what tells one from another. Read from disk, without the gateway."""

from __future__ import annotations

import logging
from pathlib import Path

from openclaw.owners import root
from openclaw.runtime.adapters import BASE_VERSION, accepted_versions
from openclaw.runtime.where import checkpoints_of
from slime.checkpoints.versions import newest_of_version, saved_versions
from slime.exceptions import PeopleError

logger = logging.getLogger(__name__)


def kept_versions(run_dir: str | Path, owner: str, *, per_person: bool) -> list[str]:
    """Return the versions that ``owner`` may ask, newest first; the last one is the base model's.

    Raises:
        PeopleError: the book of everybody's adapters is unreadable.
    """
    if not per_person:
        saved = reversed(saved_versions(checkpoints_of(run_dir)))
        found = [each.weight_version for each in saved if each.at_service is None]
    elif owner == root(owner):
        found = [str(version.number) for version in accepted_versions(run_dir, owner)]
    else:
        found = []
    return list(dict.fromkeys([*(version for version in found if version != BASE_VERSION), BASE_VERSION]))


def kept_or_base(run_dir: str | Path, owner: str, *, per_person: bool) -> list[str]:
    """Return what `kept_versions` does; of an unreadable book, which is logged, the base model's alone."""
    try:
        return kept_versions(run_dir, owner, per_person=per_person)
    except PeopleError as error:
        logger.error("%s", error)
        return [BASE_VERSION]


def identity_of(run_dir: str | Path, version: str, person: str | None) -> str | None:
    """Return what tells the weights of a version apart from all others, also from those of its number before; None if it is not kept.

    Raises:
        PeopleError: the book of everybody's adapters is unreadable.
    """
    if version == BASE_VERSION:
        return BASE_VERSION
    if person is None:
        saved = newest_of_version(checkpoints_of(run_dir), version)
        return None if saved is None else str(saved.folder)
    return next((each.name for each in accepted_versions(run_dir, person) if str(each.number) == version), None)
