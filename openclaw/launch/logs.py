"""Training from logs: what ``DATA_PATH`` changes in a plan, and how its conversations get into the run's ledger.

Guarantees: logs are read and checked before anything starts. The dry run takes them into a ledger of its own, which it
throws away, so its counts are those of the run. The run itself is the ordinary one.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from groundwork.exceptions import ConfigError
from openclaw.launch.plan import Plan
from openclaw.launch.profiles import Profile
from openclaw.launch.variables import LaunchVariables, Resolved

if TYPE_CHECKING:
    from openclaw.privacy.redactor import Redactor

STALENESS = 4
"""Updates after which the scores of a log are renewed; a batch is scored about two updates before its step."""
ENDLESS = LaunchVariables.num_rollout
"""Steps of a run that ends with its data."""
CORRECTED = ("--stale-samples", "correct")
SERVES = "--serve-when-done"
SOURCE = "logs"
"""Source of a value that training from logs decides."""
OPTIONS = ("epochs", "limit", "judge_again")


def add_log_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how logs are used."""
    add = parser.add_argument
    add(
        *("--epochs", "--num-epochs"),
        type=_count,
        metavar="N",
        help="with DATA_PATH: train each conversation N times (default: 1)",
    )
    add("--limit", type=_count, metavar="N", help="with DATA_PATH: use only the first N conversations")
    add(
        "--judge-again",
        action="store_true",
        help="with DATA_PATH: ask the judge about all turns, also those whose verdict is in the logs",
    )


def log_words(options: argparse.Namespace) -> list[str]:
    """Return the options of `add_log_options` as words of a command line."""
    words = ["--epochs", str(options.epochs)] if options.epochs is not None else []
    words += ["--limit", str(options.limit)] if options.limit is not None else []
    return [*words, *(["--judge-again"] if options.judge_again else [])]


def check_log_options(options: argparse.Namespace, data_path: object) -> list[str]:
    """Return which options have no effect on a live run.

    Raises:
        ConfigError: an option about logs without any.
    """
    words = [] if data_path else log_words(options)
    if words == ["--epochs", "1"]:
        return ["--epochs 1 has no effect: a live run trains each conversation once"]
    if words:
        raise ConfigError(f"{words[0]} is about logs; name them: DATA_PATH=FILE_OR_FOLDER")
    return []


def with_logs(profile: Profile, variables: dict[str, Resolved]) -> tuple[Profile, dict[str, Resolved]]:
    """Return profile and variables of a run that trains from ``DATA_PATH``; unchanged without it.

    The run ends when its data is used, unless the user says otherwise. Quotas between owners do not apply, because nobody
    waits for these conversations; so batches come in the order of the logs. The gate is off, because it keeps turns out of
    training, and no update serves anybody.
    """
    if not variables["data_path"].value:
        return profile, variables
    ours = {"max_weight_staleness": STALENESS, "num_rollout": ENDLESS, "gate": False}
    variables = {
        name: replace(entry, value=ours[name], source=SOURCE)
        if name in ours and entry.source in ("default", "profile", "method")
        else entry
        for name, entry in variables.items()
    }
    decided = {
        "OPENCLAW_OFFLINE": "1",
        "OPENCLAW_SCORE_AHEAD": str(variables["batch_size"].value),
        "OPENCLAW_OWNER_SHARE": "1",
        "OPENCLAW_FEEDBACK_SHARE": "1",
    }
    flags = tuple(flag for flag in profile.flags if flag != SERVES)
    return replace(profile, flags=flags, runtime={**profile.runtime, **decided}), variables


def take_in_logs(plan: Plan, options: argparse.Namespace, *, dry: bool) -> Iterator[str]:
    """Take the logs into the run's ledger, or a throw-away one; yield what they hold.

    Raises:
        ConfigError, LedgerError: the logs cannot be used; the message says what to write.
    """
    from openclaw.ledger.commands import progress_bar
    from openclaw.ledger.store import Ledger
    from openclaw.ledger.views import counted
    from openclaw.offline.checks import check_tokens, same_batches
    from openclaw.offline.intake import Wishes, take_in
    from openclaw.offline.reading import read_logs
    from openclaw.runtime.where import ledger_path

    logs = read_logs(Path(str(plan.variables["data_path"].value)).expanduser())
    target = ledger_path(plan.args, plan.environment)
    if logs.ledger is not None:
        if logs.ledger.resolve() == target.resolve():
            raise ConfigError(
                f"DATA_PATH {logs.path} is the ledger of this very run; unset DATA_PATH to continue it, or name another SAVE_CKPT"
            )
        if not dry:
            check_tokens(logs.ledger, plan.args.hf_checkpoint)
    epochs = options.epochs or 1
    wishes = Wishes(epochs, options.limit, options.judge_again)
    with tempfile.TemporaryDirectory(prefix="openclaw-logs-") as folder, progress_bar("reading logs") as on_progress:
        place = Path(folder) / "ledger.sqlite" if dry else target
        with closing(Ledger(place, redaction=_redactor(plan))) as ledger:
            report = take_in(logs, ledger, wishes, on_progress)
    again = f", {epochs} times" if epochs > 1 else ""
    yield f"logs     {logs.path}{again}"
    yield from (f"         {line}" for line in report.lines())
    if logs.ledger is not None and (line := same_batches(logs.ledger, plan.args.rollout_batch_size)):
        yield f"         {line}"
    if not (report.to_score or report.with_verdict or report.samples or report.known or report.to_judge):
        raise ConfigError(f"DATA_PATH {logs.path} holds no turn to train; a turn needs a next state, or a verdict")
    most, batch_size = report.most_samples * epochs, plan.args.rollout_batch_size
    if most < batch_size and not plan.args.serve_when_done:
        why = (
            f"DATA_PATH {logs.path} gives {counted(most, 'sample')} at most, but a batch needs {batch_size}, so no step would be "
            f"taken; add conversations, or set BATCH_SIZE={most} or less"
        )
        if not dry:
            raise ConfigError(why)
        yield f"warning  {why}"


def _redactor(plan: Plan) -> Redactor | None:
    from openclaw.privacy.redactor import Redactor
    from openclaw.privacy.secret_finder import OwnKeyFinder, secret_values

    mode = plan.live.redact
    return None if mode == "off" else Redactor(mode, own_keys=OwnKeyFinder(secret_values(os.environ)))


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number
