"""Builds a tiny teacher for distillation: `python -m lab.tiny_models.teachers liked|random --tokenizer same|other --out FOLDER`.

`liked` is the tiny model, trained on with replies that the student likes, to problems outside the held-out set. `random` has the
same shape and untrained weights: the control. With `--tokenizer other` a teacher has a vocabulary, a chat template and control
tokens of its own, cut from the same texts: words have no space before them there, signs have one behind them, and words are cut elsewhere. A token of it begins with the mean
of the embeddings that the tiny model has for its text.

Guarantees: the folder appears under its name only when the teacher is complete, with what was measured on held-out problems in
`metrics.json`. A `liked` teacher that does not answer as the student likes is an error.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from word_problems.everyday import draw_everyday
from word_problems.feedback import approval, complaint
from word_problems.problems import draw, draw_short
from word_problems.replies import draw_style, write

from groundwork.chat_messages import Message
from groundwork.command_line import CommandLine
from lab.tiny_models.batches import Encoded, padded
from lab.tiny_models.build import BuildError, ensure_built, training_progress
from lab.tiny_models.cache import Settings
from lab.tiny_models.gate import measure_first_replies
from lab.tiny_models.sampling import Sampler
from lab.tiny_models.tokenizer import SPECIAL_TOKENS, train_bpe
from lab.tiny_models.train import new_model, train

Kind = Literal["liked", "random"]
KINDS: tuple[Kind, ...] = ("liked", "random")
Cut = Literal["same", "other"]
CUTS: tuple[Cut, ...] = ("same", "other")
STEPS: dict[Cut, int] = {"same": 120, "other": 500}
LEARNING_RATE = 2e-3
LIKED_LEAST, RIGHT_LEAST = 0.95, 0.95
HELDOUT = 256
POOL = 800

OTHER_VOCABULARY = 760
OTHER_TEXTS = 3000
OTHER_SPLIT = r"\p{N}|\p{L}+| ?[^\s\p{L}\p{N}]+ ?|\s"
OTHER_SPECIAL = ("<|pad|>", "<|turn|>", "<|end|>")
OTHER_END = "<|end|>"
OTHER_TEMPLATE = (
    "{% for message in messages %}<|turn|>{{ message.role }}\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)


def liked_conversation(rng: random.Random) -> list[Message]:
    """Return a conversation whose last reply the student likes, about problems that nothing is measured on."""
    kind = rng.random()
    problem = draw_short(rng) if kind < 0.5 else draw(rng) if kind < 0.8 else draw_everyday(rng)
    messages: list[Message] = [{"role": "user", "content": problem.question}]
    before = rng.random()
    if before < 0.3:
        disliked = write(rng, problem, draw_style(rng))
        messages += [{"role": "assistant", "content": disliked}, {"role": "user", "content": complaint(rng)}]
    elif before < 0.5:
        messages.append({"role": "assistant", "content": write(rng, problem, "plain")})
        problem = draw_short(rng)
        messages.append({"role": "user", "content": approval(rng, "train", problem.question)})
    return [*messages, {"role": "assistant", "content": write(rng, problem, "plain")}]


def liked_batches(tokenizer: Any, seed: int, tokens: int) -> Iterator[tuple[Any, Any]]:
    """Yield batches of `liked_conversation` without end; only the last reply has a weight."""
    rng = random.Random(seed)
    while True:
        yield from padded((_encoded(tokenizer, liked_conversation(rng)) for _ in range(POOL)), rng, tokens)


def _encoded(tokenizer: Any, messages: list[Message]) -> Encoded:
    prompt = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True, return_dict=False)
    reply = tokenizer.encode(messages[-1]["content"] + tokenizer.eos_token, add_special_tokens=False)
    return Encoded([*prompt, *reply], [0.0] * len(prompt) + [1.0] * len(reply))


def other_tokenizer(seed: int = 0) -> Any:
    """Return a tokenizer that cuts the same texts elsewhere than the tiny model's."""
    rng = random.Random(seed)
    conversations = (liked_conversation(rng) for _ in range(OTHER_TEXTS))
    texts = [message["content"] for messages in conversations for message in messages]
    return train_bpe(
        texts, OTHER_VOCABULARY, OTHER_SPLIT, (), OTHER_TEMPLATE, special_tokens=OTHER_SPECIAL, end=OTHER_END
    )


def moved(model: Any, tokenizer: Any, other: Any, seed: int) -> Any:
    """Return the model with ``other`` as its tokenizer: the layers are its own, an embedding is the mean of those of the text."""
    import torch

    made: Any = new_model(other, Settings(), seed)
    body = {name: value for name, value in model.state_dict().items() if "embed_tokens" not in name}
    body.pop("lm_head.weight", None)  # tied to the embedding
    made.load_state_dict(body, strict=False)
    signs = dict(zip(OTHER_SPECIAL, SPECIAL_TOKENS, strict=True))
    old, new = model.get_input_embeddings().weight, made.get_input_embeddings().weight
    with torch.no_grad():
        for index, token in enumerate(other.convert_ids_to_tokens(range(len(other)))):
            text = signs.get(token) or other.convert_tokens_to_string([token])
            new[index] = old[tokenizer.encode(text, add_special_tokens=False)].mean(0)
    return made


def build_teacher(
    kind: Kind, cut: Cut, out: Path, *, seed: int = 0, steps: int | None = None, console: Console | None = None
) -> Path:
    """Build a teacher into ``out``, which must not exist, and return it.

    Raises:
        BuildError: a ``liked`` teacher does not answer as the student likes, or wrongly.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    console, started = console or Console(stderr=True), time.monotonic()
    base = ensure_built(console=console)
    tokenizer = own = AutoTokenizer.from_pretrained(base)
    if cut == "other":
        tokenizer = other_tokenizer(seed)
    count = (STEPS[cut] if steps is None else steps) if kind == "liked" else 0
    threads = torch.get_num_threads()
    torch.set_num_threads(min(2, len(os.sched_getaffinity(0))))
    try:
        if kind == "random":
            model: Any = new_model(tokenizer, Settings(), seed).eval()
        else:
            model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
            if cut == "other":
                model = moved(model, own, tokenizer, seed)
            stream = liked_batches(tokenizer, seed, Settings().batch_tokens)
            with training_progress(console, count, f"{kind} teacher, {cut} tokenizer") as advance:
                train(model, stream, steps=count, learning_rate=LEARNING_RATE, on_step=advance)
        with console.status("measuring on held-out problems"):
            measured = measure_first_replies(Sampler(model, tokenizer, seed), HELDOUT)
    finally:
        torch.set_num_threads(threads)
    console.print(
        f"held-out first replies: liked {measured['liked']:.2f}, right numbers {measured['right_number']:.2f}"
    )
    if kind == "liked" and (measured["liked"] < LIKED_LEAST or measured["right_number"] < RIGHT_LEAST):
        raise BuildError(
            f"after {count} steps {measured['liked']:.2f} of the replies are liked and {measured['right_number']:.2f} have the "
            f"right number, {LIKED_LEAST} and {RIGHT_LEAST} needed; try more --steps"
        )
    note = {"teacher": kind, "tokenizer": cut, "seed": seed, "steps": count, **measured}
    note |= {"parameters": model.num_parameters(), "seconds": round(time.monotonic() - started, 1)}
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".teacher-", dir=out.parent) as folder:
        draft = Path(folder) / "model"
        model.save_pretrained(draft)
        tokenizer.save_pretrained(draft)
        (draft / "metrics.json").write_text(json.dumps(note, indent=1) + "\n")
        draft.rename(out)
    return out


def new_folder(text: str) -> Path:
    """Parse the path of a folder that does not exist yet.

    Raises:
        argparse.ArgumentTypeError: it exists.
    """
    if (path := Path(text).expanduser().absolute()).exists():
        raise argparse.ArgumentTypeError(f"{text} exists; name another folder, or remove it")
    return path


def main(argv: list[str] | None = None) -> int:
    """Command line; prints the folder."""
    parser = CommandLine(
        prog="python -m lab.tiny_models.teachers",
        description="Build a tiny teacher for distillation: one that answers as the student likes, or a random one as control.",
    )
    parser.add_argument("kind", choices=KINDS, help="liked: answers as the student likes; random: untrained")
    parser.add_argument(
        "--tokenizer", choices=CUTS, default="same", help="the tiny model's, or one of its own (default: %(default)s)"
    )
    parser.add_argument("--out", type=new_folder, required=True, help="new folder for the teacher")
    parser.add_argument("--seed", type=int, default=0, help="seed of its training or weights (default: %(default)s)")
    steps = ", ".join(f"{count} with the {cut} tokenizer" for cut, count in STEPS.items())
    parser.add_argument("--steps", type=int, default=None, help=f"training steps of a liked teacher (default: {steps})")
    options = parser.parse_args(argv)
    if options.steps is not None and (options.kind == "random" or options.steps < 1):
        parser.error("--steps is for a liked teacher, 1 or more")
    try:
        print(build_teacher(options.kind, options.tokenizer, options.out, seed=options.seed, steps=options.steps))
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
