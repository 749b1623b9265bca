"""The command lines that convert data sets; an agent folder has them under the names of older guides.

Guarantees: a file that exists is not written over. A row that cannot be used ends the command, or is counted with ``--skip-bad``.

Every row that is written can be used; a row that cannot is an error with its number, or is counted if ``skip`` is given. Reads local
files only: JSON lines, and Parquet with the ``train`` extra.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from agentrl.tasks.toolcall.draft import GraderName
from agentrl.tasks.toolcall.rows import data_of, is_missing, question_of, read_rows
from groundwork.command_line import CommandLine
from groundwork.exceptions import ConfigError

QUESTION_COLUMNS = ("prompt", "problem", "question", "Problem")
LABEL_COLUMNS = ("label", "answer", "solution", "Answer")
ROLES = ("system", "user", "assistant", "tool")
PROGRESS = 10_000
Row = Callable[[Mapping[str, Any], str], dict[str, Any]]


def read_table(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each row of a file of JSON lines, or of Parquet, with its number.

    Raises:
        ConfigError: the file cannot be read.
    """
    if path.suffix != ".parquet":
        yield from read_rows(path)
        return
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise ConfigError(f"{path} is Parquet, which needs pyarrow; install it with: pip install pyarrow") from None
    try:
        rows = parquet.read_table(path).to_pylist()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; name a Parquet file") from error
    yield from enumerate(rows)


def question_row(row: Mapping[str, Any], where: str, grader: str) -> dict[str, Any]:
    """Return a row of DAPO-Math-17k, AIME or the like as ``{"prompt", "label", "metadata"}``.

    Args:
        row: has a question (``prompt`` as text or messages, ``problem``, ``question`` or ``Problem``) and an answer (``label``, ``answer``, or
            ``reward_model.ground_truth``).
        where: place of the row, for messages.
        grader: of the answers.

    Raises:
        ConfigError: question or answer is missing.
    """
    question = next((found for name in QUESTION_COLUMNS if (found := question_of(row.get(name)))), None)
    model = row.get("reward_model")
    labels = [model.get("ground_truth") if isinstance(model, Mapping) else None, *(row.get(n) for n in LABEL_COLUMNS)]
    label = _one_answer(next((item for item in labels if not is_missing(item)), None), where)
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    found = {"prompt": question, "label": label, "metadata": {"grader": grader}}
    data = data_of(found, where)
    return {**found, "label": data["answer"]}


def _one_answer(label: Any, where: str) -> Any:
    """Return the answer that a list of one text holds, as a list or as its JSON; any other label unchanged.

    Raises:
        ConfigError: it holds several.
    """
    answers = label
    if isinstance(label, str) and label.startswith("["):
        try:
            answers = json.loads(label)
        except (ValueError, RecursionError):
            return label
    # [34] may be an interval or a vector; only a text in quotes is not mathematics.
    if not isinstance(answers, list) or not answers or not all(isinstance(answer, str) for answer in answers):
        return label
    if len(answers) > 1:
        raise ConfigError(f"{where} has {len(answers)} labels; give the one right answer")
    return answers[0]


def conversation_row(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a row of ReTool-SFT or the like as ``{"messages": [{"role", "content"}]}``.

    Args:
        row: has ``messages`` with ``role`` and ``content``, or ``conversations`` with ``from`` and ``value``.
        where: place of the row, for messages.

    Raises:
        ConfigError: there is no conversation that ends with the assistant.
    """
    given = row.get("messages") or row.get("conversations")
    if not isinstance(given, list) or not given:
        raise ConfigError(f"{where} has no messages; give a list of them")
    messages: list[dict[str, Any]] = []
    for message in given:
        if not isinstance(message, dict):
            raise ConfigError(f"{where} has a message that is not an object; give role and content")
        if message.get("tool_calls"):
            raise ConfigError(f"{where} has tool_calls, which this would lose; give the file to --prompt-data as it is")
        speaker = str(message.get("from"))
        role = message.get("role") or {"human": "user", "gpt": "assistant"}.get(speaker, speaker)
        content = message.get("content", message.get("value"))
        if role not in ROLES or not isinstance(content, str):
            raise ConfigError(f"{where} has a message without a role of {', '.join(ROLES)}, or without text")
        messages.append({"role": role, "content": content})
    if messages[-1]["role"] != "assistant":
        raise ConfigError(f"{where} does not end with the assistant; leave it out")
    return {"messages": messages}


def questions(argv: Sequence[str] | None = None) -> int:
    """Convert questions with labels for reinforcement learning; return the exit status."""
    parser = _parser(
        "rl_data_preprocess.py", "Convert questions and answers, such as DAPO-Math-17k and AIME, for a run."
    )
    graders = get_args(GraderName)
    parser.add_argument("--grader", choices=graders, default="math", help="how answers are compared (%(default)s)")
    options = parser.parse_args(argv)
    return _converted(parser.prog, options, functools.partial(question_row, grader=options.grader))


def conversations(argv: Sequence[str] | None = None) -> int:
    """Convert conversations for supervised fine-tuning; return the exit status."""
    parser = _parser("sft_data_processing.py", "Convert conversations, such as ReTool-SFT, for supervised fine-tuning.")
    options = parser.parse_args(argv)
    return _converted(parser.prog, options, conversation_row)


def _parser(name: str, description: str) -> CommandLine:
    parser = CommandLine(prog=name, description=description)
    parser.add_argument("--input", type=Path, required=True, metavar="FILE", help="JSON lines or Parquet to read")
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FILE", help="JSON lines to write; must not exist"
    )
    parser.add_argument("--skip-bad", action="store_true", help="leave out rows that cannot be used, and count them")
    return parser


def _converted(prog: str, options: Any, convert: Row) -> int:
    try:
        written, skipped = _convert(options.input, options.output, convert, skip=options.skip_bad)
    except ConfigError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    print(f"{options.output}: {written} rows{f', {skipped} left out' if skipped else ''}")
    return 0


def _convert(source: Path, target: Path, convert: Row, *, skip: bool) -> tuple[int, int]:
    """Write the converted rows; return how many, and how many were left out."""
    if target.exists():
        raise ConfigError(f"{target} exists; remove it, or name another file")
    rows: list[str] = []
    skipped = 0
    for number, row in read_table(source):
        try:
            rows.append(json.dumps(convert(row, f"{source}: row {number}"), ensure_ascii=False) + "\n")
        except ConfigError:
            if not skip:
                raise
            skipped += 1
        if (number + 1) % PROGRESS == 0:
            print(f"{number + 1} rows read", file=sys.stderr)
    if not rows:
        raise ConfigError(f"{source} has no row that can be used; name another file")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("x", encoding="utf-8") as file:
            file.writelines(rows)
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error.strerror}") from error
    return len(rows), skipped
