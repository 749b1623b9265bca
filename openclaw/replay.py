"""``openclaw-rl replay RUN --method NAME``: is a run exactly what its ledger says? See `openclaw.offline.replay`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import closing

from groundwork.command_line import CommandLine
from groundwork.exceptions import ConfigError
from openclaw.config.runtime import RuntimeConfig
from openclaw.exceptions import OpenClawError
from openclaw.launch.method_check import import_paths
from openclaw.launch.methods import find_method, method_file, methods_of
from openclaw.launch.profiles import DEFAULT_PROFILE
from openclaw.ledger.store import Ledger
from openclaw.method import Method, load_method
from openclaw.method.loading import resolve
from openclaw.offline.replay import replay
from openclaw.runtime.where import add_run, find_ledger
from openclaw.training.live import LiveRollout

PROG = "openclaw-rl replay"


def method_of(name: str) -> Method:
    """Return a method by name or folder, with the settings of the environment.

    Raises:
        ConfigError: there is none, or it cannot be built.
    """
    method = find_method(name)
    if not method.config.rollout_function:
        raise ConfigError(f"--method {name}: {method_file(method.folder)} declares no method")
    with import_paths([str(method.folder)]):
        function = resolve(method.config.rollout_function)
        if not isinstance(function, LiveRollout):
            raise ConfigError(f"--method {name} does not learn from recorded turns")
        by_method, by_profile = method.runtime_defaults(DEFAULT_PROFILE, os.environ)
        environment = {**by_method, **by_profile, **os.environ}
        return load_method(function.method_path, RuntimeConfig.from_env(environment), environment)


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = CommandLine(
        prog=PROG,
        description="Make the samples of a finished run again from its turns and verdicts, and compare them bit by bit with "
        "those that it trained; then compare the batches. The method's variables count as in the run.",
        epilog="Exit status 1: something differs.",
    )
    add_run(parser)
    names = "|".join([*sorted(method.config.name for method in methods_of()), "FOLDER"])
    parser.add_argument("--method", required=True, metavar=names, help="the method of the run")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Compare; return the exit status."""
    options = build_parser().parse_args(argv)
    try:
        if (results := find_ledger(options.run)) is None:
            raise ConfigError(f"no ledger in {options.run}; name the folder of a run")
        method = method_of(options.method)
        with closing(Ledger(results)) as ledger:
            result = replay(ledger, method)
    except (OpenClawError, ConfigError) as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return 2
    print("\n".join(result.lines()))
    return 0 if result.exact else 1


if __name__ == "__main__":
    sys.exit(main())
