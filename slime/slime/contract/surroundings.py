"""Stand-in surroundings to check a plugin in: arguments, a tokenizer, prompts, an engine, samples.

Guarantees: everything lives in a temporary folder and in this process. Leaving restores the process's generation state and HTTP
client. The trainer's parser builds the arguments, so a plugin finds every attribute that a run has.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.arguments.parser import parser_for
from slime.arguments.plugins import resolve_plugin_files
from slime.arguments.validate import validate
from slime.arguments.yaml_files import apply_custom_config, with_config_file
from slime.contract.engine import StandInEngine, in_thread, letters_engine
from slime.utils import http_utils
from slime.utils.misc import SingletonMeta
from slime.utils.types import Sample

PROMPTS = 8
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass
class Surroundings:
    """The arguments, engine and samples that a check passes to a plugin."""

    args: Arguments
    engine: StandInEngine

    def sample(self, index: int = 0, **changes: Any) -> Sample:
        """Return a prompt without a reply."""
        return Sample(group_index=0, index=index, prompt="say something", label="7", **changes)

    def answered(self, count: int = 4) -> list[Sample]:
        """Return scored samples, two per group, with replies of different lengths."""
        samples = []
        for index in range(count):
            length = 2 + index % 3
            samples.append(
                Sample(
                    group_index=index // 2,
                    index=index,
                    prompt="say something",
                    tokens=[1, 2, *range(3, 3 + length)],
                    response="a" * length,
                    response_length=length,
                    loss_mask=[1] * length,
                    rollout_log_probs=[-0.5] * length,
                    label="7",
                    reward={self.args.reward_key: float(index % 2)} if self.args.reward_key else float(index % 2),
                    status=Sample.Status.COMPLETED,
                    metadata={"next_state": "thanks"},
                )
            )
        return samples

    def groups(self, count: int = 2) -> list[list[Sample]]:
        """Return groups of two scored samples."""
        samples = self.answered(2 * count)
        return [samples[start : start + 2] for start in range(0, 2 * count, 2)]


async def stand_in_reward(args: Arguments, sample: Any, **kwargs: Any) -> Any:
    """Return the response's length as reward, unless the command line names a reward function."""
    if isinstance(sample, list):
        return [await stand_in_reward(args, one) for one in sample]
    value = float(sample.response_length)
    return {args.reward_key: value} if args.reward_key else value


def write_tokenizer(folder: Path) -> None:
    """Write a byte-level tokenizer with ChatML's tokens, and the configuration of a small Qwen3."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True) for token in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    config = {"model_type": "qwen3", "hidden_size": 32, "num_hidden_layers": 1, "vocab_size": len(fast)}
    (folder / "config.json").write_text(json.dumps(config))


def make_args(words: Sequence[str], folder: Path) -> Arguments:
    """Return the trainer's arguments for ``words``, with stand-ins for missing flags.

    Raises:
        ConfigError: a plugin file or a file of arguments does not exist or cannot be read.
        SystemExit: ``words`` are not valid flags.
    """
    prompts = folder / "prompts.jsonl"
    rows = [{"prompt": f"count to {number}", "label": str(number)} for number in range(PROMPTS)]
    prompts.write_text("\n".join(map(json.dumps, rows)))
    base = f"""--hf-checkpoint {folder} --device cpu --num-rollout 1 --rollout-batch-size 2 --n-samples-per-prompt 2
        --rollout-max-response-len 8 --rollout-num-gpus 1 --prompt-data {prompts} --input-key prompt --label-key label
        --eval-prompt-data held_out {prompts} --save {folder / "save"} --run-dir {folder / "run"}
        --custom-rm-path slime.contract.surroundings.stand_in_reward""".split()
    parser = parser_for(words)
    args, _ = parser.parse_known_args([*base, *with_config_file(parser, words)])
    problems = [*apply_custom_config(parser, args), *resolve_plugin_files(args)]
    if problems:
        raise ConfigError("\n".join(problems))
    validate(args)  # for the values it derives; its problems do not matter without GPUs and checkpoints
    args.load = args.save
    return args


@contextmanager
def surroundings(words: Sequence[str] = ()) -> Iterator[Surroundings]:
    """Provide stand-in surroundings with the trainer's flags ``words``."""
    from slime.rollout.sglang_rollout import GenerateState

    with tempfile.TemporaryDirectory(prefix="slime-contract-") as name:
        folder = Path(name)
        write_tokenizer(folder)
        args = make_args(words, folder)
        engine = letters_engine()
        client, http_utils._http_client = http_utils._http_client, None
        state = SingletonMeta._instances.pop(GenerateState, None)
        try:
            with in_thread(engine) as url:
                for role in ("sglang", "prm"):
                    setattr(args, f"{role}_router_ip", "127.0.0.1")
                    setattr(args, f"{role}_router_port", int(url.rpartition(":")[2]))
                yield Surroundings(args, engine)
        finally:
            http_utils._http_client = client
            SingletonMeta.clear(GenerateState)
            if state is not None:
                SingletonMeta._instances[GenerateState] = state
