"""The results of an evaluation on disk: one line per case, so that a stopped evaluation goes on where it was.

Guarantees: a line is written once its case is graded, and then flushed. A last line that was cut off is dropped. A folder whose
settings differ is refused before anything is asked.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evaluation.case import PASSED, Case, EvalError, Grade
from evaluation.talk import Talk
from groundwork.private_files import private, private_folder
from openclaw.messages.text import clip_middle

SETTINGS = "settings.json"
MAX_TEXT = 20_000


@dataclass(frozen=True)
class Record:
    """One played case.

    Attributes:
        suite: name of the suite.
        task: name of the case (`Case.id`).
        family: kind of problem.
        level: of the problem.
        seed: of the problem.
        number: of the problem, within suite and seed.
        sample: number of the try, from 0.
        passed: whether it was solved.
        reason: `PASSED`, or why not.
        detail: the same for a person.
        degenerate: whether a reply was empty, cut off or repetitive.
        malformed_calls: tool calls that nobody could carry out.
        reply: the last reply.
        messages: the whole conversation.
        seconds: spent waiting for replies.
        tokens: of all replies.
    """

    suite: str
    task: str
    family: str
    level: int
    seed: int
    number: int
    sample: int
    passed: bool
    reason: str
    detail: str
    degenerate: bool
    malformed_calls: int
    reply: str
    messages: Sequence[Mapping[str, Any]]
    seconds: float
    tokens: int

    @property
    def key(self) -> tuple[str, int]:
        """What it is a result of."""
        return self.task, self.sample


def record(case: Case, sample: int, grade: Grade, talk: Talk) -> Record:
    """Return the record of a played case, with long texts clipped."""
    replies = [str(message["content"]) for message in talk.messages if message["role"] == "assistant"]
    messages = [{**item, "content": clip_middle(str(item["content"]), MAX_TEXT)} for item in talk.messages]
    return Record(
        suite=case.suite,
        task=case.id,
        family=case.family,
        level=case.level,
        seed=case.seed,
        number=case.number,
        sample=sample,
        passed=grade.reason == PASSED,
        reason=grade.reason,
        detail=clip_middle(grade.detail, 1000),
        degenerate=bool(talk.defects),
        malformed_calls=grade.malformed_calls,
        reply=clip_middle(replies[-1], MAX_TEXT) if replies else "",
        messages=messages,
        seconds=round(talk.seconds, 4),
        tokens=talk.tokens,
    )


class Results:
    """The file of one model's results; close it."""

    def __init__(self, path: Path) -> None:
        """Read what an earlier run left, and open the file for more.

        Raises:
            EvalError: the file holds something else.
        """
        self.path = path
        self.records = _read(path)
        self._file = os.fdopen(private(str(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND), "a")

    def done(self) -> set[tuple[str, int]]:
        """Return the keys of the results so far."""
        return {item.key for item in self.records}

    def add(self, result: Record) -> None:
        """Write a result."""
        self._file.write(json.dumps(asdict(result)) + "\n")
        self._file.flush()
        self.records.append(result)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _read(path: Path) -> list[Record]:
    if not path.is_file():
        return []
    data = path.read_bytes()
    whole, _, cut = data.rpartition(b"\n")
    if cut:
        with path.open("r+b") as file:
            file.truncate(len(data) - len(cut))
    try:
        return [Record(**json.loads(line)) for line in whole.split(b"\n") if line]
    except (ValueError, TypeError, RecursionError) as error:
        raise EvalError(f"{path} holds no results of this command ({error}); name another --output-dir") from error


def prepare(folder: Path, settings: Mapping[str, Any]) -> None:
    """Create the folder of an evaluation, or check that it is one with the same settings.

    Raises:
        EvalError: it is of another evaluation.
    """
    path = folder / SETTINGS
    wanted = json.loads(json.dumps(settings))
    if path.is_file():
        try:
            document = json.loads(path.read_text())
        except (ValueError, RecursionError):
            document = {}
        document = document if isinstance(document, dict) else {}
        differing = [
            f"{name} {document.get(name)!r}, now {wanted[name]!r}"
            for name in wanted
            if document.get(name) != wanted[name]
        ]
        if differing:
            raise EvalError(
                f"{folder} holds an evaluation with other settings ({'; '.join(differing)}); name another --output-dir"
            )
        return
    if folder.is_dir() and any(folder.iterdir()):
        raise EvalError(f"{folder} is not empty and holds no evaluation; name another --output-dir")
    private_folder(folder)
    path.write_text(json.dumps(wanted, indent=1) + "\n")


def problems_key() -> str:
    """Return a key of the sources that make and grade the problems; results of other sources are not comparable."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
