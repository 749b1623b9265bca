"""Attack a running server in every known way: ``python -m tests.security``.

It prints one row per attack: the finding, what was sent, what happened, what others noticed, and whether the server held. It
exits with 1 if an attack did not hold, or if others noticed more than the figures allow.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from tests.security import generated
from tests.security.attack import Attack
from tests.security.chromium import NoChromiumError
from tests.security.list_of_attacks import ATTACKS
from tests.security.probes import Noticed, Probe
from tests.security.real_engine import real_engine
from tests.security.server import Server, running_server

MB = 1_000_000
FIRST_TOKEN_SECONDS = 1.0
HEALTHZ_SECONDS = 0.2
MEMORY_BYTES = 100 * MB
SETTLE_SECONDS = 30.0
MIN_SECONDS = 1.5
"""A probe measures at least for this long, or the slowest 1% of its first tokens is one of a handful."""
WARM_UP = 40


@dataclass(frozen=True)
class Row:
    """The result of one attack; ``late`` is how much later than in peace the slowest 1% of first tokens came."""

    finding: str
    name: str
    sent: str
    happened: str
    seconds: float
    late: float
    healthz: float
    refused: int
    memory: int
    held: bool


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.security", description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="leave out attacks that wait for time-outs or repeat")
    parser.add_argument("--requests", type=int, default=10_000, metavar="N", help="generated requests (default: 10000)")
    parser.add_argument("--seed", type=int, default=0, help="of the generated requests (default: 0)")
    parser.add_argument("--request", type=int, metavar="N", help="print generated request N of the seed, and exit")
    parser.add_argument("--only", metavar="WORDS", help="run the attacks whose finding or name contains this")
    parser.add_argument("--real", action="store_true", help="before a real SGLang engine on the CPU, with a tiny model")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there, too")
    options = parser.parse_args(words)
    if options.requests < 0:
        parser.error(f"--requests {options.requests} is negative; write 0 to leave them out")
    if options.only and not any(options.only in attack.name for attack in [*ATTACKS, *_of_requests(0, 0)]):
        parser.error(f"--only {options.only}: there is no such attack; the names are {_names()}")
    return options


def _names() -> str:
    return ", ".join(attack.name for attack in ATTACKS)


def _of_requests(seed: int, count: int) -> list[Attack]:
    """Return the attacks that send generated requests."""
    described = count // generated.SHARE_OF_DESCRIPTION

    def of_the_grammar(server: Server) -> str:
        with _progress("requests of the grammar", count - described) as step:
            return generated.grammar(server, seed, range(count - described), step)

    def of_the_description(server: Server) -> str:
        with _progress("requests of the description", described) as step:
            return generated.description(server, described, seed, step)

    return [
        Attack("generated", f"{count - described} requests of the grammar, seed {seed}", of_the_grammar),
        Attack("generated", f"about {described} requests of the OpenAPI description", of_the_description),
    ]


@contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[int], object]]:
    with tqdm(total=total, desc=what, leave=False, disable=None) as bar:
        yield bar.update


def carry_out(attack: Attack, server: Server, peace: Noticed) -> Row:
    """Run one attack while a probe measures, and judge it."""
    memory, deaths = server.memory(), server.engine.deaths()
    probe, began, problems = Probe(server, "bob"), time.monotonic(), list[str]()
    try:
        words = attack.run(server)
    except NoChromiumError as error:
        words = f"not run: {error}"
        problems.append(words)
    except Exception as error:  # noqa: BLE001  one attack's failure is a row, not the end
        words = str(error) or repr(error)
        problems.append(words)
    seconds = time.monotonic() - began
    time.sleep(max(0.0, MIN_SECONDS - seconds))
    noticed = probe.end()
    grown = _settled(server, memory)
    late = max(0.0, noticed.first_token - peace.first_token)
    died = server.engine.deaths() - deaths
    if died > attack.deaths:
        problems.append(f"the engine died {died} times")
    if not server.process.alive():
        problems.append("the runtime died")
    if attack.deaths == 0 and late > FIRST_TOKEN_SECONDS:
        problems.append(f"first tokens came {late:.2f} s later")
    if noticed.healthz > HEALTHZ_SECONDS:
        problems.append(f"/healthz took {noticed.healthz:.2f} s")
    if grown > MEMORY_BYTES:
        problems.append(f"{grown / MB:.0f} MB stayed")
    told = "; ".join(dict.fromkeys([*problems, words] if problems else [words]))
    healthz, refused = noticed.healthz, noticed.refused
    return Row(attack.finding, attack.name, attack.sent, told, seconds, late, healthz, refused, grown, not problems)


def _settled(server: Server, before: int) -> int:
    """Return how much memory an attack left, once it came back or `SETTLE_SECONDS` passed."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while server.process.alive():
        grown = server.memory() - before
        if grown <= MEMORY_BYTES or time.monotonic() > deadline:
            return grown
        time.sleep(0.2)
    return 0


def _peace(server: Server) -> Noticed:
    """Return what is noticed without an attack, after a warm-up."""
    for number in range(WARM_UP):
        server.chat("alice", f"warm up {number}", session="warm-up")
    probe = Probe(server, "bob")
    time.sleep(2 * MIN_SECONDS)
    return probe.end()


def chosen(options: argparse.Namespace, keys: bool) -> list[Attack]:
    """Return the attacks on a server with keys, or on one without."""
    attacks = [*ATTACKS, *(_of_requests(options.seed, options.requests) if options.requests else [])]
    return [
        attack
        for attack in attacks
        if attack.keys == keys
        and (attack.real or not options.real)
        and not (attack.long and options.quick)
        and (options.only is None or options.only in attack.name)
    ]


def run(options: argparse.Namespace, folder: Path, console: Console) -> list[Row]:
    """Run the chosen attacks, on a fresh server for each kind of it."""
    rows: list[Row] = []
    with ExitStack() as stack:
        engine, tokenizer = stack.enter_context(real_engine(folder)) if options.real else (None, None)
        start = partial(running_server, engine=engine, tokenizer=tokenizer)
        if options.real:
            start = partial(start, CONTEXT_LENGTH=str(engine.context_length))
        for keys in (True, False):
            attacks = chosen(options, keys)
            if not attacks:
                continue
            with start(folder / ("keys" if keys else "open"), keys=keys) as server:
                peace = _peace(server)
                console.print(
                    f"{'with' if keys else 'without'} keys, in peace: first token {peace.first_token:.3f} s (p99), "
                    f"/healthz {peace.healthz:.3f} s at most"
                )
                for attack in tqdm(attacks, desc="attacks", disable=None):
                    rows.append(carry_out(attack, server, peace))
                    if not server.process.alive():
                        console.print(f"the runtime died under {attack.name}; the attacks after it were not run")
                        break
    return rows


def show(rows: Sequence[Row], console: Console) -> None:
    """Print the table."""
    table = Table("finding", "sent", "happened", "first token", "healthz", "refused", "memory", "", show_lines=True)
    for row in rows:
        figures = (f"+{row.late:.2f} s", f"{row.healthz:.2f} s", str(row.refused), f"{row.memory / MB:+.0f} MB")
        table.add_row(row.finding, row.sent, row.happened[:600], *figures, "held" if row.held else "[bold red]FAILED")
    console.print(table)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if an attack did not hold."""
    options = arguments(words)
    if options.request is not None:
        from tests.security.grammar import generate

        print(generate(options.seed, options.request).curl("http://127.0.0.1:30000"))
        return 0
    console = Console(width=None if sys.stdout.isatty() else 200)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="attacks-") as folder:
        try:
            rows = run(options, Path(folder), console)
        except AssertionError as error:
            print(f"python -m tests.security: the server did not start: {error}", file=sys.stderr)
            return 2
    show(rows, console)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    failed = [row.name for row in rows if not row.held]
    console.print(
        f"{len(rows) - len(failed)} of {len(rows)} held" + (f"; failed: {', '.join(failed)}" if failed else "")
    )
    return 1 if failed or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
