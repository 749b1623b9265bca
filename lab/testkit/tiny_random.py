"""Builds a Qwen3 model with random weights and its own byte-level tokenizer, in about a second.

The tokenizer has ChatML's special tokens, Qwen3's thinking and tool-call markers as ordinary added tokens, and a chat
template in Qwen3's format. It is a file, so that no change of the tests changes ids and with them a random model's numbers.
Same seed, same bytes.
"""

from __future__ import annotations

from pathlib import Path

TOKENIZER = Path(__file__).with_name("tiny_tokenizer.json")

CHAT_TEMPLATE = """{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}# Tools
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools>
<|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}{%- for m in messages %}{% if m.role == 'tool' %}<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% elif m.role != 'system' %}<|im_start|>{{ m.role }}
{{ m.content or '' }}{% if m.tool_calls %}{% for c in m.tool_calls %}
<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}{% endif %}<|im_end|>
{% endif %}{% endfor %}{%- if add_generation_prompt %}<|im_start|>assistant
{% if not (enable_thinking is defined and enable_thinking) %}<think>

</think>

{% endif %}{% endif %}"""


def build_tokenizer():
    """Return the byte-level BPE ``PreTrainedTokenizerFast`` of 647 tokens that tests share, with ``CHAT_TEMPLATE``."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = CHAT_TEMPLATE
    return fast


def build(
    path: Path,
    *,
    seed: int = 0,
    dtype: str = "float32",
    hidden_size: int = 64,
    num_layers: int = 2,
    tie_word_embeddings: bool = False,
    vocab_multiple: int = 16,
    initializer_range: float = 0.08,
    head_dim: int = 16,
) -> Path:
    """Write a random Qwen3 checkpoint and tokenizer to ``path`` and return it; an existing one is kept.

    Args:
        path: the folder; written once.
        seed: seed of the weights.
        dtype: torch dtype name of the saved weights.
        hidden_size: model width; a head for each 16, half as many key/value heads as query heads.
        num_layers: decoder layers.
        tie_word_embeddings: share the embedding with the LM head.
        vocab_multiple: the embedding has the tokenizer's size rounded up to this.
        initializer_range: std of the weights; large enough that logits are far from uniform.
        head_dim: width of a head.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    path = Path(path)
    if (path / "config.json").exists():
        return path
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer()
    vocab_size = -(-len(tokenizer) // vocab_multiple) * vocab_multiple
    heads = max(2, hidden_size // 16)
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=hidden_size * 2,
        num_hidden_layers=num_layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
        head_dim=head_dim,
        max_position_embeddings=4096,
        tie_word_embeddings=tie_word_embeddings,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=initializer_range,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config).to(getattr(torch, dtype))
    tokenizer.save_pretrained(path)
    model.save_pretrained(path)
    return path
