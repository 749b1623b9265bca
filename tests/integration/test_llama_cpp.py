"""llama.cpp reads an exported GGUF file, and answers as Transformers does from the merged folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lab.tiny_models.cache import SHIPPED
from openclaw.inspect import main
from tests.helpers.checkpoints import checkpoint
from tests.helpers.node import installed_by
from tests.unit.tools.test_leave import make_run
from tests.unit.tools.test_merge_lora import adapter_of

REPOSITORY = Path(__file__).resolve().parents[2]
LLAMA_CPP = REPOSITORY / ".cache" / "llama_cpp" / "lib"
ASKED = (
    "Tom has 3 apples and gets 4 more. How many?",
    "Anna has 9 coins and loses 2. How many are left?",
    "Hello é 🚀 <think>",
)
TOKENS, SHOWN = 48, 5
PROGRAM = """
import json, sys
import xllamacpp
parameters = xllamacpp.CommonParams()
parameters.model.path, parameters.n_ctx, parameters.n_parallel, parameters.cpuparams.n_threads = sys.argv[1], 1024, 1, 2
server = xllamacpp.Server(parameters)
answers = []
tokens, shown = map(int, sys.argv[2:])
for prompt, messages in json.load(sys.stdin):
    said = server.handle_completions({"prompt": prompt, "max_tokens": tokens, "temperature": 0.0, "logprobs": shown})
    kwargs = {"enable_thinking": False}
    chat = server.handle_chat_completions(
        {"messages": messages, "max_tokens": tokens, "temperature": 0.0, "chat_template_kwargs": kwargs}
    )
    answers.append([said, chat])
print(json.dumps(answers))
"""


def answers_of_llama_cpp(file: Path, asked: list[Any]) -> list[Any]:
    """Return what llama.cpp answers to each prompt and to the same messages, greedily."""
    environment = {**os.environ, "PYTHONPATH": str(LLAMA_CPP)}
    command = [sys.executable, "-c", PROGRAM, str(file), str(TOKENS), str(SHOWN)]
    done = subprocess.run(
        command, env=environment, input=json.dumps(asked), capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.timeout(300)
def test_llama_cpp_answers_alike(tmp_path: Path) -> None:
    installed_by("scripts/setup_llama_cpp.sh")
    run = make_run(tmp_path / "run", SHIPPED)
    adapter_of(SHIPPED, checkpoint(run / "checkpoints", 1, weight_version="1", lora=True) / "adapter", size=0.02)
    for form, name in (("merged", "whole"), ("gguf", "mine.gguf")):
        assert main([str(run), "export", "--adapter", "--as", form, "--to", str(tmp_path / name)]) == 0
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "whole")
    model, base = (AutoModelForCausalLM.from_pretrained(place) for place in (tmp_path / "whole", SHIPPED))
    asked, learned = [], []
    for words in ASKED:
        messages = [{"role": "user", "content": words}]
        prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        asked.append((prompt, messages))
    for (prompt, _), (said, chat) in zip(asked, answers_of_llama_cpp(tmp_path / "mine.gguf", asked), strict=True):
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        assert said["usage"]["prompt_tokens"] == ids.size(1), "llama.cpp cuts the prompt into the same tokens"
        whole = model.generate(ids, max_new_tokens=TOKENS, do_sample=False)[0]
        text = tokenizer.decode(whole[ids.size(1) :], skip_special_tokens=True)
        choice = said["choices"][0]
        assert choice["text"] == text
        assert chat["choices"][0]["message"]["content"].strip() == text.strip(), "its chat template says the same"
        with torch.no_grad():
            expected = torch.log_softmax(model(whole[None]).logits[0].float(), -1)
            learned.append((expected - torch.log_softmax(base(whole[None]).logits[0].float(), -1)).abs().max())
        for position, step in enumerate(choice["logprobs"]["content"]):
            row = expected[ids.size(1) - 1 + position]
            for token in step["top_logprobs"]:
                assert token["logprob"] == pytest.approx(float(row[token["id"]]), abs=0.05)
    assert min(learned) > 0.2, "the adapter changes the answers, so the file has it"
