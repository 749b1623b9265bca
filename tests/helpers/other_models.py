"""Tiny teachers of another architecture than the tests' policy, with its tokenizer or with one of their own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from lab.tiny_models.tokenizer import train_bpe

TEXTS = [
    "The sum of two and three is five, is it not?\n",
    "Write plain prose without bold type.\n",
    "你好, naïve café.\n",
]
TEMPLATE = """{% for m in messages %}<|turn|>{{ m.role }}: {{ m.content }}<|end|>{% endfor %}<|turn|>assistant: """
SPECIAL = ("<|pad|>", "<|turn|>", "<|end|>")


def other_tokenizer(normalizer: normalizers.Normalizer | None = None) -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer that cuts words elsewhere than the tiny one, with control tokens of its own."""
    made = train_bpe(TEXTS * 3, 420, r"[^ ]+| +", ["</think>"], TEMPLATE, special_tokens=SPECIAL)
    made.eos_token = "<|end|>"
    if normalizer is not None:
        made.backend_tokenizer.normalizer = normalizer
    return made


def sentence_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer in SentencePiece's style: spaces as a sign, unknown characters as bytes."""
    pieces = [
        "<unk>",
        "<s>",
        "<|end|>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        *"abcdefghijklmnopqrstuvwxyz,.",
    ]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("s", "u"), ("su", "m")]
    pieces += ["".join(merge) for merge in merges]
    core = Tokenizer(
        models.BPE({piece: n for n, piece in enumerate(pieces)}, merges, unk_token="<unk>", byte_fallback=True)
    )
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    core.pre_tokenizer = pre_tokenizers.Sequence([])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="<unk>",
        eos_token="<|end|>",
        bos_token="<s>",
        clean_up_tokenization_spaces=False,
        chat_template="{% for m in messages %}<s>{{ m.role }}: {{ m.content }}<|end|>{% endfor %}<s>assistant:",
    )


def llama(folder: Path, tokenizer: Any, seed: int = 5) -> Path:
    """Write a random Llama checkpoint with this tokenizer and return its folder."""
    config = LlamaConfig(
        vocab_size=-(-len(tokenizer) // 16) * 16,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=3,
        num_key_value_heads=3,
        max_position_embeddings=4096,
        initializer_range=0.3,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


class Forward:
    """log p(ids[k] | ids[:k]) at temperature 1 in float64, by a plain transformers forward; entry 0 is meaningless."""

    def __init__(self, folder: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    def __call__(self, ids: Sequence[int]) -> list[float]:
        with torch.no_grad():
            table = torch.log_softmax(self.model(torch.tensor([list(ids)])).logits[0, :-1], -1)
        return [0.0, *table.gather(1, torch.tensor(list(ids[1:]))[:, None])[:, 0].tolist()]

    def of_reply(self, prompt: Sequence[int], reply: Sequence[int]) -> list[float]:
        """The log probabilities of a reply's ids."""
        return self([*prompt, *reply])[len(prompt) :]


def engine_of(forward: Forward, key: str | None = None) -> type[BaseHTTPRequestHandler]:
    """Return what answers `/generate` with the numbers of ``forward``, to those who send ``key``."""

    class Handler(BaseHTTPRequestHandler):
        requests: ClassVar[list[dict[str, Any]]] = []

        def do_POST(self) -> None:
            payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.requests.append(payload)
            if key is not None and self.headers["Authorization"] != f"Bearer {key}":
                return self.answer(401, {"error": "no key"})
            meta: dict[str, Any] = {"finish_reason": {"type": "stop"}, "weight_version": "default"}
            if payload.get("return_logprob"):
                ids = payload.get("input_ids") or list(forward.tokenizer(payload["text"]).input_ids)
                start, values = payload["logprob_start_len"], forward(ids)
                meta["input_token_logprobs"] = [
                    [None, ids[start], None],
                    *([values[n], ids[n], None] for n in range(start + 1, len(ids))),
                ]
            return self.answer(200, {"text": "x", "meta_info": meta})

        def answer(self, status: int, content: dict[str, Any]) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Keep the test's output clean."""

    return Handler
