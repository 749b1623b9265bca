"""Measures a served model on held-out problems: `python openclaw-test/measure.py --base-url URL`.

Guarantees: every request is a side turn of its own session, so nothing measured is trained. Replies are sampled as for
any user (the server's own temperature). ``rule_rate`` counts replies that follow the user's rule, by default the
student's, and are not degenerate.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asking import server_client
from word_problems.problems import draw_short, heldout
from word_problems.replies import follows_rule, gives_number, is_degenerate

from groundwork.command_line import server_url
from groundwork.data_rows import json_objects, read_json, read_text
from openclaw.runtime.where import DEFAULT_URL

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from simulated_users.user import User

MAX_TOKENS = 160
PARALLEL = 16
LESSONS_HEADER = "X-OpenClaw-Lessons"
"""Asks for lessons in a prompt (``on``) or declines them (``off``)."""
GSM8K_QUESTIONS = 128


class MeasureError(RuntimeError):
    """A measurement failed."""


@dataclass(frozen=True)
class Item:
    """A question with its answer."""

    question: str
    answer: str


@dataclass(frozen=True)
class Reply:
    """The reply to an item."""

    item: Item
    text: str
    finished: bool
    tokens: int
    weight_version: str
    liked: bool

    @property
    def degenerate(self) -> bool:
        """Whether the reply is broken."""
        return is_degenerate(self.text, self.finished, self.tokens)

    @property
    def good(self) -> bool:
        """Whether the user likes it and it is not degenerate."""
        return self.liked and not self.degenerate

    @property
    def right(self) -> bool:
        """Whether its last number is the answer."""
        return gives_number(self.text, self.item.answer)


@dataclass(frozen=True)
class Measurement:
    """Replies to all items."""

    replies: tuple[Reply, ...]

    @property
    def rule_rate(self) -> float:
        """Share of replies that follow the rule and are not degenerate."""
        return self._share([reply.good for reply in self.replies])

    @property
    def right_number_rate(self) -> float:
        """Share of replies whose last number is the answer."""
        return self._share([reply.right for reply in self.replies])

    @property
    def degenerate_rate(self) -> float:
        """Share of broken replies."""
        return self._share([reply.degenerate for reply in self.replies])

    @property
    def weight_version(self) -> str:
        """Weights of the newest reply."""
        return self.replies[-1].weight_version

    def _share(self, hits: list[bool]) -> float:
        return round(sum(hits) / len(hits), 4)


def draw_item(rng: random.Random) -> Item:
    """Return a problem that the tiny model may be trained on."""
    problem = draw_short(rng, "train")
    return Item(problem.question, str(problem.answer))


def heldout_items(count: int) -> list[Item]:
    """Return ``count`` held-out template problems."""
    return [Item(problem.question, str(problem.answer)) for problem in heldout(count)]


def gsm8k_items(path: Path, count: int = GSM8K_QUESTIONS) -> list[Item]:
    """Return the first ``count`` questions of a GSM8K file: a JSON list or JSON lines, with ``question`` and an answer.

    Raises:
        MeasureError: if the file has another format.
    """
    try:
        text = read_text(path)
        rows = read_json(text) if text.lstrip().startswith("[") else [row for _, row in json_objects(path)]
        return [
            Item(row["question"], str(row.get("ground_truth_answer", row.get("answer", ""))).split("####")[-1].strip())
            for row in rows[:count]
        ]
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise MeasureError(
            f"{path} is not a GSM8K file (JSON list or lines with question and answer): {error}"
        ) from error


async def measure(
    client: AsyncOpenAI,
    model: str,
    items: list[Item],
    parallel: int = PARALLEL,
    likes: Callable[[str], bool] = follows_rule,
    user: User | None = None,
    lessons: bool = False,
) -> Measurement:
    """Ask every item once, ``parallel`` at a time.

    Args:
        client: of the server.
        model: model name in requests.
        items: what is asked.
        parallel: requests at a time.
        likes: the rule, unless there is a user.
        user: whose rule, opening message, temperature and limit apply.
        lessons: whether the prompts have the lessons of the client's person, which side turns have not by themselves.

    Raises:
        MeasureError: if a request is refused.
    """
    from openai import APIConnectionError, APIStatusError

    slots, run = asyncio.Semaphore(parallel), uuid.uuid4().hex[:8]
    rule, max_tokens = (user.likes, user.max_tokens) if user else (likes, MAX_TOKENS)
    sampling: dict[str, Any] = {} if user is None or user.temperature is None else {"temperature": user.temperature}
    asked = {"X-Turn-Type": "side", "X-Session-Done": "1", **({LESSONS_HEADER: "on"} if lessons else {})}

    async def ask(number: int, item: Item) -> Reply:
        async with slots:
            raw = await client.chat.completions.with_raw_response.create(
                model=model,
                messages=[{"role": "user", "content": user.first_message(item) if user else item.question}],
                max_tokens=max_tokens,
                extra_headers={**asked, "X-Session-Id": f"measure-{run}-{number}"},
                **sampling,
            )
        completion, choice = raw.parse(), raw.parse().choices[0]
        tokens = completion.usage.completion_tokens if completion.usage else 0
        version = raw.headers.get("x-weight-version", "")
        text = choice.message.content or ""
        return Reply(item, text, choice.finish_reason == "stop", tokens, version, rule(text))

    try:
        return Measurement(tuple(await asyncio.gather(*(ask(number, item) for number, item in enumerate(items)))))
    except (APIConnectionError, APIStatusError) as error:
        raise MeasureError(f"the server refused a request of the measurement: {error}") from error


async def _main(arguments: argparse.Namespace) -> int:
    async with server_client(arguments.base_url, 120) as client:
        items = gsm8k_items(arguments.gsm8k) if arguments.gsm8k else heldout_items(arguments.problems)
        result = await measure(client, arguments.model, items)
    figures = {
        "problems": len(items),
        "rule_rate": result.rule_rate,
        "right_number_rate": result.right_number_rate,
        "degenerate_rate": result.degenerate_rate,
        "weight_version": result.weight_version,
        "example": {"question": items[0].question, "reply": result.replies[0].text},
    }
    print(json.dumps(figures, indent=1))
    return 0


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="measure.py", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--base-url", type=server_url, default=DEFAULT_URL, help="URL of the server (default: %(default)s)"
    )
    parser.add_argument("--model", default="tiny", help="model name in requests (default: %(default)s)")
    parser.add_argument("--problems", type=int, default=192, help="held-out problems (default: %(default)s)")
    parser.add_argument("--gsm8k", type=Path, default=None, help="GSM8K file to use instead of generated problems")
    try:
        return asyncio.run(_main(parser.parse_args()))
    except MeasureError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
