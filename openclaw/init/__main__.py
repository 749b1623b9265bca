"""``openclaw-rl init``, also ``python -m openclaw.init``.

Guarantees: at most five questions, each with a default and a flag, and three on a machine without a GPU. The machine is checked
before anything is written, and init downloads nothing. No key is printed.
"""

from __future__ import annotations

import argparse
import getpass
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx

from groundwork.command_line import CommandLine, names_a_user, port_number
from groundwork.exceptions import ConfigError
from groundwork.network import is_http_url
from openclaw.init import clients, machine, run_files
from openclaw.init.clients import CLIENTS, Connection
from openclaw.init.files import put
from openclaw.init.machine import RUNS, Run
from openclaw.runtime.where import chat_command

ELSEWHERE = "elsewhere"
"""The answer for a server that runs on another machine, or that somebody else started."""
LOOPBACK, EVERYWHERE = "127.0.0.1", "0.0.0.0"
REACH = {"here": LOOPBACK, "network": EVERYWHERE}
JUDGE_KEY = "OPENCLAW_JUDGE_API_KEY"
USUAL_CONTEXT = 32768
ASK_SECONDS = 5.0
YES, NO = "yes", "no"
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Answers:
    """What the person wants.

    Attributes:
        run: None with a server elsewhere.
        clients: to configure.
        context: of the server, in tokens.
        host: on which the server listens.
        judge: URL and model of one elsewhere.
        unit: whether systemd starts the run.
        server: URL of the one elsewhere.
        key: its key.
    """

    run: Run | None
    clients: list[str]
    context: int
    host: str
    judge: tuple[str, str] | None
    unit: bool
    server: str | None = None
    key: str | None = None


def build_parser() -> CommandLine:
    """Return the command line."""
    parser = CommandLine(
        prog="openclaw-rl init",
        description="Ask at most five questions, check this machine, and write the files of a run and of your clients.",
        epilog="Each question has an option, and --yes takes the default of every other one. init downloads nothing, replaces no "
        "file of yours, and ends with the next command to type.",
    )
    names = [*(run.name for run in RUNS), ELSEWHERE]
    parser.add_argument("--run", choices=names, help="what shall run here (default: the largest that fits)")
    parser.add_argument(
        "--clients",
        metavar="NAME,...",
        help=f"clients to configure: {', '.join(CLIENTS)}, or none (default: those that are installed and fit)",
    )
    parser.add_argument(
        "--reach", choices=[*REACH], help="who may reach the server: this machine, or the network with a key"
    )
    parser.add_argument(
        "--server", metavar="URL", help=f"with --run {ELSEWHERE}: its address; its key comes from {run_files.KEY}"
    )
    parser.add_argument(
        "--judge", metavar="URL,MODEL", help=f"with --run gpu16: the model that judges; its key comes from {JUDGE_KEY}"
    )
    parser.add_argument(
        "--systemd", action=argparse.BooleanOptionalAction, help="write a user unit that starts the run"
    )
    parser.add_argument("--folder", type=Path, metavar="F", help="where the files go (default: ~/.config/openclaw-rl)")
    parser.add_argument(
        "--repository", type=Path, metavar="F", help="the clone (default: the one around here, else ~/OpenClaw-RL)"
    )
    parser.add_argument("--port", type=port_number, default=30000, help="port of the server (default: %(default)s)")
    parser.add_argument(
        "--context-length", type=int, metavar="N", help="longest conversation in tokens (default: the run's)"
    )
    parser.add_argument(
        "--skip-checks", action="store_true", help="write the files although this machine cannot run it"
    )
    parser.add_argument("--yes", action="store_true", help="ask nothing")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Ask, check and write; return 1 if this machine cannot run it, 2 if an answer is wrong."""
    options = build_parser().parse_args(argv)
    try:
        if not options.yes and not sys.stdin.isatty():
            raise ConfigError(
                "there is no terminal to ask at; add --yes, and an option for each answer that is not the default"
            )
        return _init(options, os.environ)
    except ConfigError as error:
        print(f"init: {error}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, EOFError):
        print("\ninit: stopped, nothing more was written", file=sys.stderr)
        return 130


def _init(options: argparse.Namespace, environment: Mapping[str, str]) -> int:
    found = machine.read(environment)
    fitting = machine.fitting(found, environment)
    answers = _answers(options, environment, fitting)
    home = Path(environment.get("HOME") or Path.home())
    folder = (options.folder or home / ".config" / "openclaw-rl").expanduser().absolute()
    if answers.run is None:
        return _connect(answers, home, folder)
    clone = (options.repository or machine.find_clone(Path.cwd()) or home / "OpenClaw-RL").expanduser().absolute()
    if clone.exists() and not machine.is_clone(clone) and any(clone.iterdir()):
        raise ConfigError(
            f"{clone} is not a clone of this project; name one with --repository, or a folder that does not exist"
        )
    key = run_files.kept_key(folder) or (run_files.new_key() if answers.host != LOOPBACK else None)
    run_dir = clone / "runs" / folder.name
    variables = _variables(options, answers, environment, key, run_dir)
    if not options.skip_checks:
        wrong = machine.problems(answers.run, found, clone, environment)
        wrong = wrong or machine.plan_problems(answers.run, clone, variables)
        if wrong:
            print("\n".join(f"init: {line}" for line in wrong), file=sys.stderr)
            print("init: nothing was written; for another machine, add --skip-checks", file=sys.stderr)
            return 1
    cloned = machine.is_clone(clone)
    print(put(folder / run_files.VARIABLES, run_files.variables_text(answers.run, variables)))
    print(put(folder / run_files.START, run_files.start_text(answers.run, clone, run_dir)))
    if answers.unit:
        units = Path(environment.get("XDG_CONFIG_HOME") or home / ".config") / "systemd" / "user"
        text = run_files.unit_text(answers.run, folder / run_files.START, clone)
        print(put(units / f"{run_files.unit_name(folder)}.service", text))
    root = f"http://{LOOPBACK}:{options.port}"
    to = Connection(root, key, answers.context, home, folder, clone if cloned else None)
    starts = _write_clients(answers.clients, to)
    model = answers.run.model
    here = model is not None and machine.is_model(clone / "models" / model.name)
    command = run_files.next_command(answers.run, clone, folder, cloned=cloned, model_here=here, unit=answers.unit)
    print(f"\nnext:  {command}")
    if model is None and not machine.has_cpu_environment(clone):
        print(
            f"       It downloads {machine.CPU_GB:g} GB of packages once, which takes minutes. A line says when it serves."
        )
    chat = chat_command(to.url)
    if key is not None:
        chat = f"(set -a; . {shlex.quote(str(folder / run_files.VARIABLES))}; {chat})"
    _print_starts([f"chat: {chat}", f"see what it learns: {root}/", *starts])
    return 0


def _connect(answers: Answers, home: Path, folder: Path) -> int:
    """Write the files of clients of a server elsewhere."""
    assert answers.server is not None
    root = answers.server.rstrip("/").removesuffix("/v1")
    starts = _write_clients(
        answers.clients, Connection(root, answers.key, answers.context, home, folder, machine.find_clone(Path.cwd()))
    )
    key = f"{run_files.KEY}=KEY " if answers.key else ""
    print(f"\nnext:  {key}{chat_command(f'{root}/v1')}")
    _print_starts([f"see what it learns: {root}/", *starts])
    return 0


def _write_clients(names: Sequence[str], to: Connection) -> list[str]:
    """Write the files of clients; return a line that says how to start each."""
    starts = []
    for name in names:
        written = CLIENTS[name].write(to)
        print("\n".join(written.files))
        starts.append(f"{CLIENTS[name].title}: {written.start}")
    return starts


def _print_starts(lines: Sequence[str]) -> None:
    if lines:
        print("then:  " + "\n       ".join(lines))


def _variables(
    options: argparse.Namespace, answers: Answers, environment: Mapping[str, str], key: str | None, run_dir: Path
) -> dict[str, str]:
    """Return the variables of the run."""
    assert answers.run is not None
    variables = {"RUN_DIR": str(run_dir), "PORT": str(options.port)}
    if answers.run.model is not None:
        variables["HOST"] = answers.host
    if options.context_length:
        variables["CONTEXT_LENGTH"] = str(options.context_length)
    if key is not None:
        variables[run_files.KEY] = key
    if answers.judge is not None:
        variables["OPENCLAW_JUDGE_BASE_URL"], variables["OPENCLAW_JUDGE_MODEL"] = answers.judge
        if environment.get(JUDGE_KEY):
            variables[JUDGE_KEY] = environment[JUDGE_KEY]
    return variables


def _asked_context(server: str, key: str | None) -> int:
    """Ask a server for its context; say so if it does not answer."""
    url = f"{server.rstrip('/').removesuffix('/v1')}/v1/models"
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        answer = httpx.get(url, headers=headers, timeout=ASK_SECONDS).raise_for_status()
        return int(answer.json()["data"][0].get("max_model_len") or USUAL_CONTEXT)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError, AttributeError) as error:
        why = f"HTTP {error.response.status_code}" if isinstance(error, httpx.HTTPStatusError) else type(error).__name__
        print(
            f"init: {url} does not say how long a conversation may be ({why}); {USUAL_CONTEXT} tokens are assumed",
            file=sys.stderr,
        )
        return USUAL_CONTEXT


def _answers(options: argparse.Namespace, environment: Mapping[str, str], fitting: Sequence[Run]) -> Answers:
    """Ask what the options leave open.

    Raises:
        ConfigError: an option's answer is wrong, or does not fit the others.
    """
    lines = [f"{run.name:10} {run.what}{'' if run in fitting else ' (not here)'}" for run in RUNS]
    lines.append(f"{ELSEWHERE:10} a server on another machine, or one that runs already")
    chosen = _ask(options, options.run, "What shall run here?", lines, fitting[0].name, _run_named)
    run = next((run for run in RUNS if run.name == chosen), None)
    server = key = judge = None
    host = LOOPBACK
    if run is None:
        server = _ask(options, options.server, "Where is the server?", ["its URL"], f"http://{LOOPBACK}:30000", _url)
        key = environment.get(run_files.KEY) or (
            None if options.yes else getpass.getpass("Its key (empty: none): ") or None
        )
    elif options.server:
        raise ConfigError(f"--server is for --run {ELSEWHERE}; leave it out")
    elif run.model is not None:
        lines = ["here       programs of this machine", "network    everybody with the key that is written for you"]
        host = REACH[_ask(options, options.reach, "Who may reach it?", lines, "here", _one_of(REACH))]
    elif options.reach == "network":
        raise ConfigError("--reach network is for runs on GPUs; the one of a CPU answers this machine only")
    if run is not None and run.judged_elsewhere:
        judge = _ask(
            options, options.judge, "Which model judges?", ["URL,MODEL of an OpenAI-compatible API"], "", _judge
        )
    elif options.judge:
        raise ConfigError("--judge is for --run gpu16; the other runs have room for a judge of their own")
    context = options.context_length or (run.context if run else _asked_context(server or "", key))
    usual = ",".join(clients.installed(context)) or "none"
    lines = [f"{name:12} {client.too_long(context) or client.title}" for name, client in CLIENTS.items()]
    parse = _clients_for(context)
    names = _ask(
        options, options.clients, "Which clients shall reach it, besides openclaw-rl chat?", lines, usual, parse
    )
    unit = False
    if run is not None:
        given = None if options.systemd is None else (YES if options.systemd else NO)
        lines = ["yes or no; it then starts at every log-in"]
        unit = _ask(options, given, "Shall systemd start it?", lines, NO, _one_of({YES: True, NO: False})) == YES
    elif options.systemd:
        raise ConfigError(f"--systemd is for a run on this machine, and --run {ELSEWHERE} has none")
    return Answers(run, names, context, host, judge, unit, server, key)


def _ask(
    options: argparse.Namespace,
    given: str | None,
    question: str,
    lines: Sequence[str],
    usual: str,
    parse: Callable[[str], Answer],
) -> Answer:
    """Return the option's value, else the default with ``--yes``, else what the person types; a wrong answer is asked again."""
    if given is not None or options.yes:
        return parse(usual if given is None else given)
    print("\n".join([f"\n{question}", *(f"  {line}" for line in lines)]))
    while True:
        try:
            return parse(input(f"[{usual}] ").strip() or usual)
        except ConfigError as error:
            print(error)


def _run_named(text: str) -> str:
    return _one_of([*(run.name for run in RUNS), ELSEWHERE])(text)


def _one_of(words: Mapping[str, object] | Sequence[str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        named = [word for word in words if word.startswith(text.lower())] if text else []
        if text.lower() in words:
            named = [text.lower()]
        if len(named) != 1:
            raise ConfigError(f"{text!r} is none of {', '.join(words)}; type one of them")
        return named[0]

    return parse


def _url(text: str) -> str:
    if names_a_user(text):
        raise ConfigError(
            "an address with a name or password in it would be written into files as it is; type https://HOST:30000, and "
            "set keys in the environment"
        )
    if not is_http_url(text):
        raise ConfigError(f"{text!r} is no URL; type one such as https://HOST:30000")
    return text


def _judge(text: str) -> tuple[str, str]:
    url, _, model = (part.strip() for part in text.partition(","))
    if not model:
        raise ConfigError(
            "a card of 16 GB has no room for a judge; name one as URL,MODEL (--judge https://HOST/v1,NAME)"
        )
    return _url(url), model


def _clients_for(context: int) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = clients.find(text)
        if wrong := next(filter(None, (CLIENTS[name].too_long(context) for name in names)), None):
            raise ConfigError(f"{wrong}; leave it out, or raise --context-length")
        return names

    return parse


if __name__ == "__main__":
    sys.exit(main())
