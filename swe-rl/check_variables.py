"""``python swe-rl/check_variables.py SPLIT...``: whether the variables of a training run can be what they are, before anything starts.

The scripts call it, also with ``--dry-run``. Guarantees: it only reads, and an error is one line that says what to type, with exit status 2. Instances
of the splits are looked up, and without a pool the sandbox's settings are checked.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from os import environ

from swe_config import SweVariables

from agentrl.sandbox.providers import SandboxSettings, provider
from agentrl.tasks.names import SPLITS
from agentrl.tasks.swe.source import InstanceSource
from groundwork.exceptions import ConfigError


def check(splits: Sequence[str], environment: Mapping[str, str] = environ) -> None:
    """Check the variables of a run that needs the instances of some splits.

    Raises:
        ConfigError: a variable is invalid, the sandbox's settings do not fit, the benchmark is for evaluation only, or a
            split has no instance.
    """
    variables, source = SweVariables.from_env(environment), InstanceSource.from_env(environment)
    source.check_trainable()
    if variables.server_url is None:
        try:
            provider(SandboxSettings(variables.sandbox, variables.sandbox_image), environment)
        except ConfigError as error:
            raise ConfigError(f"SANDBOX={variables.sandbox}, SANDBOX_IMAGE: {error}") from error
    for split in splits:
        source.ids(split)


def main(splits: Sequence[str]) -> int:
    """Check; return how the command ends."""
    if wrong := [each for each in splits if each not in SPLITS]:
        print(f"check_variables: unknown split {wrong[0]!r}; use some of {', '.join(SPLITS)}", file=sys.stderr)
        return 2
    try:
        check(splits)
    except ConfigError as error:
        print(f"check_variables: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
