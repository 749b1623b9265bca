"""The command line of `run_eval.sh`, and what it says: which models, which problems, where the results go.

Guarantee: a wrong command line ends with status 2 and what to type, before anything starts.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluation.case import EvalError
from evaluation.records import problems_key
from evaluation.served import checkpoint_of
from evaluation.suites import NAMES
from groundwork.checkpoint_names import origin_of, trained_checkpoint
from groundwork.command_line import CommandLine, server_url
from openclaw.models.places import served_folder
from openclaw.runtime.where import DEFAULT_URL
from openclaw.server.options import build_parser as server_parser

PROG = "run_eval.sh"
SUITES = "--eval-tasks"
OLD_FLAG = "--allow-code-execution"


@dataclass(frozen=True)
class Target:
    """A model to evaluate: a checkpoint or a run that is served here, or a server that runs.

    Attributes:
        name: in the report.
        file: of its results.
        path: checkpoint to serve, or None.
        run: a checkpoint of a run whose weights are served, and the checkpoint that the run began with; or None.
        url: of the running server, or None.
        model: to ask for; None for the server's only one.
        key_variable: holds the server's key; None for the gateway's own variables.
    """

    name: str
    file: str
    path: str | None = None
    run: tuple[Path, Path] | None = None
    url: str | None = None
    model: str | None = None
    key_variable: str | None = None


def suite_names(text: str) -> list[str]:
    """Parse ``conversation,coding``."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in NAMES]
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"unknown task {', '.join(unknown) or repr(text)}; use {', '.join(NAMES)}")
    return names


def seed_list(text: str) -> list[int]:
    """Parse ``0,1,2``."""
    try:
        seeds = sorted({int(part) for part in text.split(",")})
    except ValueError:
        seeds = []
    if not seeds or seeds[0] < 0:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of seeds; write whole numbers of 0 or more, such as 0,1,2"
        )
    return seeds


def positive(text: str) -> int:
    """Parse a number of 1 or more."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


@dataclass(frozen=True)
class Program:
    """What the help says of the script that was started: its name, what it does, and what follows the options."""

    name: str
    description: str
    epilog: str | None = None


RUN_EVAL = Program(
    PROG,
    "Evaluate a model on generated problems and write a report. Other options go to python -m openclaw.server, "
    "which serves a checkpoint (--gpu-ids 0,1).",
)


def folder_or_url(text: str) -> str:
    """Parse the path of a checkpoint folder, or a server's URL."""
    return server_url(text) if "://" in text else text


def build_parser(program: Program) -> CommandLine:
    """Return the parser of the command line."""
    parser = CommandLine(prog=program.name, description=program.description, epilog=program.epilog)
    add = parser.add_argument_group("the model").add_argument
    add("--model-path", metavar="P", help="serve this checkpoint folder first")
    add("--run", type=Path, metavar="RUN", help="serve the newest checkpoint of this run's folder first")
    add("--base-url", type=server_url, metavar="URL", help=f"any OpenAI-compatible server (default: {DEFAULT_URL})")
    add("--model", metavar="M", help="model that the server is asked for (default: its only one)")
    add("--key-variable", metavar="NAME", help="environment variable with the server's key (default: SGLANG_API_KEY)")
    add = parser.add_argument_group("compare").add_argument
    add(
        "--compare-to",
        type=folder_or_url,
        metavar="P|URL",
        help="ask the same problems of this checkpoint folder or server",
    )
    add("--compare-model", metavar="M", help="model that this server is asked for (default: its only one)")
    add("--compare-key-variable", metavar="NAME", help="environment variable with this server's key")
    add = parser.add_argument_group("the problems").add_argument
    add(SUITES, type=suite_names, default=list(NAMES), metavar="NAMES",
        help=f"comma-separated suites out of {','.join(NAMES)} (default: all)")  # fmt: skip
    add(
        "--num-problems",
        type=positive,
        default=16,
        metavar="N",
        help="problems per suite and seed (default: %(default)s)",
    )
    add(
        "--seeds", type=seed_list, default=[0], metavar="LIST", help="seeds of the problems, such as 0,1,2 (default: 0)"
    )
    add("--samples", type=positive, default=1, metavar="N", help="tries per problem (default: %(default)s)")
    add("--temperature", type=float, metavar="T", help="of sampling (default: the server's)")
    add("--max-tokens", type=positive, default=1024, metavar="N", help="longest reply in tokens (default: %(default)s)")
    add("--gsm8k", type=Path, metavar="FILE", help="add questions of this GSM8K file to the suite retention")
    add = parser.add_argument_group("the evaluation").add_argument
    add("--parallel", type=positive, default=8, metavar="N", help="conversations at a time (default: %(default)s)")
    add("--timeout", type=positive, default=600, metavar="S", help="seconds to wait for a reply (default: %(default)s)")
    add("--output-dir", type=Path, metavar="FOLDER", help="folder of results and report; one that was stopped goes on "
        "(default: runs/eval-TIME)")  # fmt: skip
    add("--dry-run", action="store_true", help="print the plan and start nothing")
    return parser


def read_options(argv: Sequence[str] | None, program: Program = RUN_EVAL) -> tuple[argparse.Namespace, list[str]]:
    """Return the options and the server's own, both checked; exit with status 2 if something is wrong."""
    parser = build_parser(program)
    options, extra = parser.parse_known_args(argv)
    if OLD_FLAG in extra:
        parser.error(f"coding runs in a sandbox, without a flag; leave out {OLD_FLAG}")
    named = [flag for flag, value in _sources(options).items() if value]
    if len(named) > 1:
        parser.error(f"{' and '.join(named)} name two models; write one of them, and the other one with --compare-to")
    for flag, url in (("--key-variable", options.base_url), ("--compare-key-variable", options.compare_to)):
        variable = getattr(options, flag[2:].replace("-", "_"))
        if variable is not None and not (url or "").startswith("http"):
            parser.error(
                f"{flag} is for a server; add {'--base-url' if flag == '--key-variable' else '--compare-to'} URL"
            )
        if variable is not None and not os.environ.get(variable):
            parser.error(f"{flag} {variable}: this environment variable is not set")
    if options.compare_model and not options.compare_to:
        parser.error("--compare-model needs --compare-to URL")
    if options.gsm8k and "retention" not in options.eval_tasks:
        parser.error("--gsm8k is for the suite retention; add it to --eval-tasks")
    serves = options.model_path or options.run or (options.compare_to and not options.compare_to.startswith("http"))
    if not serves and extra:
        parser.unknown(extra)
    if serves:
        parser_of_server = server_parser(program.name)
        parser_of_server.further_flags = parser.known_flags()
        of_server = parser_of_server.parse_args(extra)
        for flag, value in (("--host", of_server.host), ("--port", of_server.port)):
            if value is not None:
                parser.error(
                    f"{flag} {value}: the checkpoint is served at a free port of this machine; leave {flag} out"
                )
    return options, extra


def _sources(options: argparse.Namespace) -> dict[str, Any]:
    return {"--model-path": options.model_path, "--run": options.run, "--base-url": options.base_url}


def targets(options: argparse.Namespace) -> list[Target]:
    """Return the model, and the one that it is compared with.

    Raises:
        EvalError: ``--run`` names no run with a checkpoint, or one of them cannot be converted.
    """
    file = "results.jsonl"
    if options.run:
        saved, origin = checkpoint_of(options.run)
        if not options.compare_to:
            print(f"{PROG}: the run began with {origin}; --compare-to {origin} compares with it", file=sys.stderr)
        results = [Target(str(saved), file, run=(saved, origin), model=options.model)]
    elif options.model_path:
        results = [
            Target(options.model_path, file, model=options.model, **weights_of("--model-path", options.model_path))
        ]
    else:
        url = options.base_url or DEFAULT_URL
        results = [Target(url, file, url=url, model=options.model, key_variable=options.key_variable)]
    if options.compare_to:
        name, model, key = options.compare_to, options.compare_model, options.compare_key_variable
        where = {"url": name} if name.startswith("http") else weights_of("--compare-to", name)
        results.append(Target(name, "compared.jsonl", model=model, key_variable=key, **where))
    return results


def weights_of(flag: str, name: str) -> dict[str, Any]:
    """Return the fields of a `Target` for the checkpoint that a user names: a model, or a checkpoint of a run to convert.

    Raises:
        EvalError: the model that the run began with is not there.
    """
    folder = served_folder(name)
    checkpoint = trained_checkpoint(folder)
    if checkpoint is None:
        return {"path": folder}
    origin = origin_of(checkpoint)
    if origin is None or not Path(origin).is_dir():
        raise EvalError(
            f"{flag} {name}: it has no Hugging Face weights, and the model that its run began with ({origin}) is not here; convert "
            f"it: python slime/tools/convert_fsdp_to_hf.py --input-dir {checkpoint} --origin-hf-dir MODEL --output-dir FOLDER"
        )
    return {"run": (checkpoint, Path(origin))}


def settings_of(options: argparse.Namespace, models: Sequence[Target]) -> dict[str, Any]:
    """Return what two parts of one evaluation must have in common."""
    return {
        "model": " ".join(filter(None, [models[0].name, models[0].model])),
        "compared with": " ".join(filter(None, [models[1].name, models[1].model])) if models[1:] else "nothing",
        "suites": options.eval_tasks,
        "seeds": options.seeds,
        "problems per suite and seed": options.num_problems,
        "tries per problem": options.samples,
        "temperature": options.temperature,
        "longest reply in tokens": options.max_tokens,
        "gsm8k": str(options.gsm8k) if options.gsm8k else "none",
        "version of the problems": problems_key(),
    }
