"""The warm start: a tiny model that imitates the traces of a careless agent, and judges steps.

`python -m lab.tiny_learning toolcall` makes it and prints its folder. Guarantees: a folder under its final name is complete and
has passed the gate on tasks of the held-out split: as policy it solves `MIN_SHARE` to `MAX_SHARE` of them, as judge it is right about
`JUDGED` of the steps. The folder's name has a hash of what the model is trained on and for how long; see `key`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from agentrl.rollout.step_judge import step_question
from lab.tiny_learning.encode import Coder, padded
from lab.tiny_learning.traces import TaskSet, Trace
from lab.tiny_learning.vocabulary import VOCABULARY, build_tokenizer
from lab.tiny_models.batches import Encoded
from lab.tiny_models.cache import Settings
from lab.tiny_models.sampling import Sampler
from lab.tiny_models.train import new_model, train
from openclaw.judge.answers import read_vote

REPOSITORY = Path(__file__).resolve().parents[2]
CACHE = REPOSITORY / ".cache" / "tiny_learning"
SHIPPED = Path(__file__).with_name("shipped")
NOTE = "warm_start.json"
KEYED, KEYED_WORDS = 64, 200
"""Traces in the hash, and traces of its small tokenizer."""
ECHO_SHARE, JUDGED_SHARE = 0.1, 0.2
"""Shares of the conversations that repeat random tokens, and that ask the judge."""
POOL = 600
ECHO_POOLS = 30
"""Pools at the beginning that have nothing to learn but copying, some 270 batches: heads that copy form in these."""
BATCH_TOKENS = 2560
STEPS, RATE = 750, 6e-3
EXTRA_ROUNDS, EXTRA_STEPS, EXTRA_RATE = 3, 250, 4e-3
"""More training of a model that has not passed the gate."""
MIN_SHARE, MAX_SHARE = 0.2, 0.5
JUDGED = 0.9
MEASURED = 128
FENCE = re.compile(r"<<<(\w+)\n")
Metrics = dict[str, float]


class WarmStartError(RuntimeError):
    """The model did not pass the gate."""


def warm_start(tasks: TaskSet, say: Callable[[str], None]) -> Path:
    """Return the folder of the warm start: the repository's, the cache's, or one that is made now.

    Raises:
        WarmStartError: it did not pass the gate.
    """
    name, shipped = key(tasks), SHIPPED / tasks.name
    if (shipped / NOTE).is_file() and json.loads((shipped / NOTE).read_text())["key"] == name:
        return shipped
    folder = CACHE / f"{tasks.name}-{name}"
    if folder.exists():
        return folder
    partial = folder.with_name(f"{folder.name}.{os.getpid()}")
    try:
        _make(tasks, partial, name, say)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def key(tasks: TaskSet) -> str:
    """Return the hash of what shapes a warm start: settings, traces, the judge's questions, and how all is encoded.

    It encodes with a tokenizer of a few traces, which is made in the same way as the whole one in a tenth of the time.
    """
    schedule = (ECHO_SHARE, JUDGED_SHARE, POOL, ECHO_POOLS, BATCH_TOKENS, STEPS, RATE, EXTRA_STEPS, EXTRA_RATE)
    digest = hashlib.sha256(repr((VOCABULARY, Settings(), schedule)).encode())
    tokenizer, rng = build_tokenizer([tasks], KEYED_WORDS), random.Random(0)
    coder = Coder(tokenizer)
    for _ in range(KEYED):
        drawn = tasks.drawn(rng)
        digest.update(repr(drawn).encode() + _question(drawn[1], rng).encode())
        answer = coder.judge(drawn[1], rng.randrange(len(drawn[1].steps)))[1]
        digest.update(repr((coder.policy(drawn[1]), coder.echo(rng), answer)).encode())
    return digest.hexdigest()[:16]


def _question(trace: Trace, rng: random.Random) -> str:
    """Return the judge's question about a step, without the random word of its fences."""
    step = rng.choice(trace.steps)
    said, heard = {"role": "assistant", "content": step.text}, {"role": "tool", "content": step.heard}
    question = step_question(trace.messages[-1]["content"], trace.messages, said, [heard])
    text = "".join(message["content"] for message in question.asked("prm", "full"))
    found = FENCE.search(text)
    return text.replace(found[1], "") if found else text


def batches(tasks: TaskSet, coder: Coder, rng: random.Random) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield padded ids and weights of at most `BATCH_TOKENS` positions, of similar lengths, without end."""
    for number in itertools.count():
        pool = [coder.echo(rng) if number < ECHO_POOLS else _one(tasks, coder, rng) for _ in range(POOL)]
        pool.sort(key=lambda encoded: len(encoded.ids))
        groups: list[list[Encoded]] = [[]]
        for encoded in pool:
            if len(encoded.ids) * (len(groups[-1]) + 1) > BATCH_TOKENS:
                groups.append([])
            groups[-1].append(encoded)
        rng.shuffle(groups)
        yield from map(padded, groups)


def _one(tasks: TaskSet, coder: Coder, rng: random.Random) -> Encoded:
    kind = rng.random()
    if kind < ECHO_SHARE:
        return coder.echo(rng)
    _, trace = tasks.drawn(rng)
    if kind < ECHO_SHARE + JUDGED_SHARE:
        return coder.judged(trace, rng.randrange(len(trace.steps)))
    return coder.policy(trace)


def measure(tasks: TaskSet, model: Any, tokenizer: Any, coder: Coder) -> Metrics:
    """Return how often the needed replies are right, and the judge, on tasks of the held-out split, sampled as in the run."""
    rng = random.Random(1)
    sampler = Sampler(model, tokenizer)
    found = [tasks.drawn(rng, "heldout", careless=False) for _ in range(MEASURED)]
    right = [True] * len(found)
    for number in range(tasks.needed):
        replies = sampler.replies([coder.prompt(trace, number) for _, trace in found], 90)
        for at, ((_, trace), ids) in enumerate(zip(found, replies, strict=True)):
            right[at] &= sampler.text(ids) == trace.steps[number].text
    solved = {
        f"solved_{family}": [hit for hit, (name, _) in zip(right, found, strict=True) if f"/{family}/" in name]
        for family in tasks.families
    }
    found = [tasks.drawn(rng, "heldout") for _ in range(MEASURED)]
    steps = [(trace, rng.randrange(len(trace.steps))) for _, trace in found]
    answers = sampler.replies([coder.judge(trace, number)[0] for trace, number in steps], 30)
    values = [read_vote("prm", sampler.text(ids), 0.0).value for ids in answers]
    agree = [value == (1 if t.steps[n].good else -1) for value, (t, n) in zip(values, steps, strict=True)]
    shares = {"solved": right, "judge_right": agree, **solved}
    told = {name: sum(hits) / len(hits) for name, hits in shares.items()}
    return {name: round(value, 4) for name, value in told.items()}


def failures(metrics: Metrics) -> list[str]:
    """Return what keeps a model from being used."""
    problems: list[str] = []
    if not MIN_SHARE <= metrics["solved"] <= MAX_SHARE:
        problems.append(f"{metrics['solved']} of the tasks are solved, not {MIN_SHARE} to {MAX_SHARE}")
    if metrics["judge_right"] < JUDGED:
        problems.append(f"the judge is right in {metrics['judge_right']}, {JUDGED} needed")
    return problems


def _make(tasks: TaskSet, folder: Path, name: str, say: Callable[[str], None]) -> None:
    started = time.process_time()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the matrices are small
    try:
        tokenizer = build_tokenizer([tasks])
        coder, settings = Coder(tokenizer), Settings()
        model = new_model(tokenizer, settings, 0)
        stream, total = batches(tasks, coder, random.Random(0)), 0

        def told(step: int, loss: float) -> None:
            if step % 50 == 0:
                say(f"warm start: step {total + step}, loss {loss:.3f}")

        metrics, problems = Metrics(), ["it was not trained"]
        for steps, rate in ((STEPS, RATE), *[(EXTRA_STEPS, EXTRA_RATE)] * EXTRA_ROUNDS):
            train(model, stream, steps=steps, learning_rate=rate, on_step=told)
            total += steps
            metrics = measure(tasks, model, tokenizer, coder)
            say(f"warm start: {metrics}")
            if not (problems := failures(metrics)):
                break
        if problems:
            raise WarmStartError(f"after {total} steps {'; '.join(problems)}")
    finally:
        torch.set_num_threads(threads)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    note = {"key": name, "steps": total, "cpu_seconds": round(time.process_time() - started), "metrics": metrics}
    (folder / NOTE).write_text(json.dumps(note, indent=1) + "\n")
