"""The warm start: a tiny model that imitates a careless agent's traces, and judges steps.

`python -m tiny_learning.warm_start terminal` makes it and prints its folder. Guarantees: a folder under its final name is
complete and has passed the gate on tasks of the held-out split: as policy it solves `LEAST` to `MOST` of them, as judge it is right about `JUDGED` of the steps. The folder's name is a hash of all that shapes it.
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
from tiny_models.batches import Encoded
from tiny_models.sampling import Sampler
from tiny_models.tokenizer import END, SPECIAL_TOKENS, SPLIT
from tiny_models.train import Settings, new_model, train
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from agentrl.rollout.step_judge import SYSTEM
from openclaw.judge.answers import read_vote
from tiny_learning.encode import Coder, padded
from tiny_learning.traces import TaskSet, Trace, bare, echo

REPOSITORY = Path(__file__).resolve().parents[2]
CACHE = REPOSITORY / ".cache" / "tiny_learning"
SHIPPED = Path(__file__).with_name("shipped")
TEMPLATE = Path(__file__).with_name("chat_template.jinja")
SOURCES = ("traces.py", "encode.py", "warm_start.py", "chat_template.jinja")
CONTROL_TOKENS = ["<tool_call>", "</tool_call>"]
VOCABULARY = 1280
FIRST_NUMBER, LAST_NUMBER = 1000, 900_000
"""Of the tasks of the warm start: GRPO has smaller numbers."""
JUDGED_SHARE = 0.2
"""Share of the conversations that ask the judge."""
POOL = 600
SHORT_POOLS = 8
"""Pools of short conversations at the beginning."""
BATCH_TOKENS = 3072
STEPS, RATE = 550, 6e-3
EXTRA_ROUNDS, EXTRA_STEPS, EXTRA_RATE = 4, 200, 4e-3
"""More training of a model that has not passed the gate."""
LEAST, MOST = 0.2, 0.5
JUDGED = 0.9
MEASURED = 128


class WarmStartError(RuntimeError):
    """The model did not pass the gate."""


def warm_start(tasks: TaskSet, say: Callable[[str], None]) -> Path:
    """Return the folder of the warm start: the repository's, the cache's, or one that is made now.

    Raises:
        WarmStartError: it did not pass the gate.
    """
    name = key(tasks)
    shipped = SHIPPED / tasks.name
    if (shipped / "warm_start.json").is_file() and json.loads((shipped / "warm_start.json").read_text())["key"] == name:
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
    """Return the hash of all that shapes a warm start."""
    digest = hashlib.sha256()
    here = Path(__file__).parent
    files = [*(here / name for name in SOURCES), *(REPOSITORY / name for name in tasks.sources)]
    files += [REPOSITORY / "openclaw-test/tiny_models/train.py", REPOSITORY / "agentrl/rollout/step_judge.py"]
    for file in files:
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def drawn(tasks: TaskSet, rng: random.Random, split: str = "train", *, careless: bool = True) -> tuple[str, Trace]:
    """Return a task that GRPO does not have, and a trace of it."""
    name = tasks.task(rng.choice(tasks.families), split, rng.randrange(FIRST_NUMBER, LAST_NUMBER))
    return name, tasks.trace(rng, name, careless)


def batches(tasks: TaskSet, coder: Coder, rng: random.Random) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield padded ids and weights of at most `BATCH_TOKENS` positions, of similar lengths, without end."""
    for number in itertools.count():
        draw = _short if number < SHORT_POOLS else _one
        pool = [draw(tasks, coder, rng) for _ in range(POOL)]
        pool.sort(key=lambda encoded: len(encoded.ids))
        groups: list[list[Encoded]] = [[]]
        for encoded in pool:
            if len(encoded.ids) * (len(groups[-1]) + 1) > BATCH_TOKENS:
                groups.append([])
            groups[-1].append(encoded)
        rng.shuffle(groups)
        yield from map(padded, groups)


def _short(tasks: TaskSet, coder: Coder, rng: random.Random) -> Encoded:
    """Return a short conversation that has much to copy: heads that copy form sooner on these."""
    if rng.random() < 0.5:
        return coder.policy(echo(rng, [drawn(tasks, rng, careless=False)[1] for _ in range(4)]))
    return coder.policy(bare(drawn(tasks, rng, careless=False)[1]))


def _one(tasks: TaskSet, coder: Coder, rng: random.Random) -> Encoded:
    _, trace = drawn(tasks, rng)
    if rng.random() < JUDGED_SHARE:
        return coder.judged(trace, rng.randrange(len(trace.steps)))
    return coder.policy(trace)


def build_tokenizer(tasks: TaskSet, traces: int = 3000) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE of the words of so many traces, digits apart."""
    rng, texts = random.Random(0), list[str]()
    for number in range(traces):
        _, trace = drawn(tasks, rng)
        heads = [*(f"{message['role']}\n{message['content']}" for message in trace.messages), SYSTEM]
        tools = [
            f"\n{t['function']['name']}({', '.join(t['function']['parameters']['properties'])})" for t in trace.tools
        ]
        texts += ["assistant", "tools", "tool"] * (number % 10 == 0)
        texts += [*(heads if number % 10 == 0 else heads[1:2]), *(tools if number % 10 == 0 else [])]
        texts += [text for step in trace.steps for text in (step.text, step.heard, step.reason)]
    bpe = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(pattern=Regex(SPLIT), behavior="isolated")
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([split, plain])
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(CONTROL_TOKENS),
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    control = re.compile("|".join(map(re.escape, SPECIAL_TOKENS + CONTROL_TOKENS)))
    bpe.train_from_iterator([piece for text in texts for piece in control.split(text) if piece], trainer)
    bpe.add_tokens([AddedToken(token, normalized=False, special=False) for token in CONTROL_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=END,
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>", END],
        clean_up_tokenization_spaces=False,
        chat_template=TEMPLATE.read_text(),
        model_max_length=4096,
    )


def measure(tasks: TaskSet, model: Any, tokenizer: Any, coder: Coder) -> dict[str, float]:
    """Return how often the needed replies are right, and the judge, on tasks of the held-out split, sampled as in the run."""
    rng = random.Random(1)
    sampler = Sampler(model, tokenizer)
    found = [drawn(tasks, rng, "heldout", careless=False) for _ in range(MEASURED)]
    right = [True] * len(found)
    for number in range(tasks.needed):
        replies = sampler.replies([coder.prompt(trace, number) for _, trace in found], 90)
        for at, ((_, trace), ids) in enumerate(zip(found, replies, strict=True)):
            right[at] &= sampler.text(ids) == trace.steps[number].text
    solved = {f"solved_{family}": [hit for hit, (name, _) in zip(right, found, strict=True) if f"/{family}/" in name] for family in tasks.families}
    found = [drawn(tasks, rng, "heldout") for _ in range(MEASURED)]
    steps = [(trace, rng.randrange(len(trace.steps))) for _, trace in found]
    answers = sampler.replies([coder.judge(trace, number)[0] for trace, number in steps], 30)
    values = [read_vote("prm", sampler.text(ids), 0.0).value for ids in answers]
    agree = [value == (1 if t.steps[n].good else -1) for value, (t, n) in zip(values, steps, strict=True)]
    shares = {"solved": right, "judge_right": agree, **solved}
    told = {name: sum(hits) / len(hits) for name, hits in shares.items()}
    return {name: round(value, 4) for name, value in told.items()}


def failures(metrics: dict[str, float]) -> list[str]:
    """Return what keeps a model from being used."""
    problems: list[str] = []
    if not LEAST <= metrics["solved"] <= MOST:
        problems.append(f"{metrics['solved']} of the tasks are solved, not {LEAST} to {MOST}")
    if metrics["judge_right"] < JUDGED:
        problems.append(f"the judge is right in {metrics['judge_right']}, {JUDGED} needed")
    return problems


def _make(tasks: TaskSet, folder: Path, name: str, say: Callable[[str], None]) -> None:
    started = time.monotonic()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the matrices are small
    try:
        tokenizer = build_tokenizer(tasks)
        coder, settings = Coder(tokenizer), Settings()
        model = new_model(tokenizer, settings, 0)
        stream, total = batches(tasks, coder, random.Random(0)), 0

        def told(step: int, loss: float) -> None:
            if step % 50 == 0:
                say(f"warm start: step {total + step}, loss {loss:.3f}")

        for steps, rate in ((STEPS, RATE), *[(EXTRA_STEPS, EXTRA_RATE)] * EXTRA_ROUNDS):
            train(model, stream, steps=steps, learning_rate=rate, on_step=told)
            total += steps
            metrics = measure(tasks, model, tokenizer, coder)
            say(f"warm start: {metrics}")
            if not (problems := failures(metrics)):
                break
        else:
            raise WarmStartError(f"after {total} steps {'; '.join(problems)}")
    finally:
        torch.set_num_threads(threads)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    note = {"key": name, "steps": total, "seconds": round(time.monotonic() - started, 1), **metrics}
    (folder / "warm_start.json").write_text(json.dumps(note, indent=1) + "\n")
