"""``python -m agentrl.rollout.inspect RUN``: shows the episodes of a run, as ``openclaw-rl inspect RUN --episodes`` does.

Guarantees: reads only, and works while the run writes.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from agentrl.rollout.records import Episode, RecordError, names, read
from groundwork.command_line import CommandLine, named_by_beginning
from openclaw.messages.text import content_text, response_text

PROG = "python -m agentrl.rollout.inspect"
BAD_INPUT = 2


def build_parser() -> CommandLine:
    """Return the parser of the command line."""
    parser = CommandLine(prog=PROG, description="Show the episodes that the agent loop recorded in a run's folder.")
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder")
    parser.add_argument(
        "--episode", metavar="NAME", help="one episode in full; the beginning of its name is enough (default: list all)"
    )
    parser.add_argument("--tokens", action="store_true", help="with --episode: the ids and log-probabilities too")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Print a list or an episode; return the exit status: 2, with one line of explanation, on failure."""
    parser = build_parser()
    options = parser.parse_args(argv)
    if options.tokens and not options.episode:
        parser.error("--tokens goes with --episode")
    try:
        if options.episode:
            name = _whole(options.run, options.episode)
            lines = episode_lines(read(options.run, name, tokens=options.tokens), tokens=options.tokens)
        else:
            lines = _list(options.run)
        for line in lines:
            print(line)
    except RecordError as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return BAD_INPUT
    return 0


def _list(run: Path) -> Iterable[str]:
    """Yield a line per episode, then one per kind of episode with how many there are and how they ended."""
    kinds: dict[str, list[Episode]] = {}
    for name in _all(run):
        episode = read(run, name, tokens=False)
        kinds.setdefault("evaluated" if name.startswith("eval-") else "trained", []).append(episode)
        yield summary(episode)
    for kind, result in kinds.items():
        outcomes = [end["outcome"] for item in result if (end := item.first("end")) and end.get("outcome") is not None]
        mean = f"mean outcome {sum(outcomes) / len(outcomes):+.2f}" if outcomes else "no outcome yet"
        lost = sum(bool(item.first("lost")) for item in result)
        yield f"{kind}: {len(result)} episodes, {len(outcomes)} with an outcome, {mean}, {lost} lost"


def summary(episode: Episode) -> str:
    """Return one line about an episode."""
    end, lost = episode.first("end"), episode.first("lost")
    replies = [event for event in episode.events if event["kind"] == "policy"]
    state = f"lost ({lost['reason']})" if lost else str(end.get("ending", "unfinished"))
    outcome = "-" if end.get("outcome") is None else f"{end['outcome']:+g}"
    sampled = sum(event["tokens"] for event in replies)
    task = episode.first("reset").get("task_id", "-")
    return f"{episode.name}  {task}  {len(replies)} turns  {sampled} tokens  outcome {outcome}  {state}"


def episode_lines(episode: Episode, *, tokens: bool = False) -> Iterable[str]:
    """Yield an episode, one or more lines per event."""
    yield summary(episode)
    for event in episode.events:
        yield from _event_lines(event)
        if tokens and (token := episode.tokens.get(event["n"])):
            yield _indented("prompt ids", json.dumps(token.prompt_ids))
            yield _indented("ids", json.dumps(token.ids))
            yield _indented("logprobs", json.dumps(token.log_probs))
    if episode.cut:
        yield "the last line is incomplete, as a crash leaves it"


def _event_lines(event: dict[str, Any]) -> Iterable[str]:
    turn = f"[{event['t']}] " if "t" in event else ""
    match event["kind"]:
        case "reset":
            yield f"reset, seed {event['seed']}"
            for tool in event["tools"]:
                yield _indented("tool", tool["function"]["name"])
            for message in event["messages"]:
                yield _indented(message["role"], content_text(message["content"]))
        case "policy":
            versions = ", ".join(dict.fromkeys(span[0] for span in event["weight_spans"])) or "-"
            size = f"{event['prompt_tokens']} + {event['tokens']} tokens"
            yield f"{turn}reply, {size}, weights {versions}, {event['finish']}{', ids withheld' * ('withheld' in event)}"
            if thought := event["message"].get("reasoning_content"):
                yield _indented("thought", thought)
            yield _indented("says", response_text(event["message"]))
        case "action":
            yield f"{turn}action {json.dumps(event['action'], ensure_ascii=False)}"
        case "observation":
            yield f"{turn}observation" + (f", ends the episode: {event['ending']}" if event["ending"] else "")
            yield _indented("sees", event["text"])
        case "malformed":
            yield f"{turn}malformed: {event['message']}"
        case "context":
            gone = f"{len(event['dropped'])} messages dropped, {len(event['shortened'])} shortened"
            yield f"{turn}context {event['policy']}: {gone}, {event['tokens'][0]} -> {event['tokens'][1]} tokens"
        case "verdict":
            passed = "" if event["total"] is None else f", {event['passed']} of {event['total']} passed"
            yield f"verdict {event['status']}, score {event['score']}{passed}" + f": {event['detail']}" * bool(
                event["detail"]
            )
        case "judge":
            yield f"judge of {event['step']}: {event['score']}, votes {event['votes']}"
        case "lost":
            yield f"lost: {event['message']}"
        case "end":
            yield f"end: {event['ending']}, outcome {event['outcome']}, {event['turns']} turns"
        case other:
            yield f"{turn}{other}"


def _indented(label: str, text: str) -> str:
    head, *rest = text.split("\n")
    return "\n".join([f"  {label}: {head}", *(f"    {line}" for line in rest)])


def _all(run: Path) -> list[str]:
    result = names(run)
    if not result:
        raise RecordError(f"{run} has no episodes; name the --run-dir of a run of agentrl.rollout.generate")
    return result


def _whole(run: Path, begin: str) -> str:
    try:
        return named_by_beginning(begin, _all(run), "episode", "leave out --episode for the list")
    except LookupError as error:
        raise RecordError(str(error)) from error


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends quietly
    sys.exit(main())
