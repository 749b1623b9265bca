"""Small byte-level tokenizers with the added tokens of Qwen3 and Qwen3.5, and chat templates that work like theirs.

The templates have the constructs of the published ones in which a client's text could matter: they look for tags in
contents, split at them, strip line breaks, print JSON, and put names between angle brackets.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>"),
    *("<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>"),
    *("<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
]
ORDINARY = [
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"),
    *("<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
]
QWEN3_5 = [
    *("<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>"),
    *("<tts_text_bos_single>", "<|audio_pad|>"),
]
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_LAST_QUERY = """{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and not (message.content.startswith('<tool_response>')
            and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
"""
_THOUGHT = """{%- set reasoning = '' %}
    {%- if message.reasoning_content is string %}{%- set reasoning = message.reasoning_content %}
    {%- elif '</think>' in content %}
        {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}"""
_RESULT = """{%- elif message.role == "tool" %}
        {%- if loop.first or messages[loop.index0 - 1].role != "tool" %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}"""

QWEN3_TEMPLATE = (
    """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n\\nSignatures within <tools></tools> XML tags:\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools>\\n\\nReturn a json object within <tool_call></tool_call> XML tags:\\n<tool_call>\\n" }}
    {{- '{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
"""
    + _LAST_QUERY
    + """{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
    """
    + _THOUGHT
    + """
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning) %}
            {{- '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}{{- content }}{%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if (loop.first and content) or not loop.first %}{{- '\\n' }}{%- endif %}
            {%- set call = call.function or call %}
            {{- '<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
            {%- if call.arguments is string %}{{- call.arguments }}{%- else %}{{- call.arguments | tojson }}{%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    """
    + _RESULT
    + """
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""
)

QWEN3_5_TEMPLATE = (
    """{%- macro extra(values, handled) %}
    {%- for key in values if key not in handled %}
        {{- '\\n<' ~ key ~ '>' ~ (values[key] if values[key] is string else values[key] | tojson) ~ '</' ~ key ~ '>' }}
    {%- endfor %}
{%- endmacro %}
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n<function>\\n<name>' ~ tool.function.name ~ '</name>' }}
        {{- extra(tool.function, ['name', 'parameters']) }}
        {%- for name, fields in ((tool.function.parameters or {}).properties or {}) | items %}
            {{- '\\n<parameter>\\n<name>' ~ name ~ '</name>' }}
            {%- if fields is mapping %}{{- extra(fields, ['name']) }}{%- endif %}
            {{- '\\n</parameter>' }}
        {%- endfor %}
        {{- '\\n</function>' }}
    {%- endfor %}
    {{- '\\n</tools>\\n\\n<tool_call>\\n<function=example>\\n</function>\\n</tool_call>' }}
    {%- if messages[0].role == 'system' %}{{- '\\n\\n' + messages[0].content|trim }}{%- endif %}
    {{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content|trim + '<|im_end|>\\n' }}
{%- endif %}
"""
    + _LAST_QUERY
    + """{%- for message in messages %}
    {%- set content = (message.content or '')|trim %}
    {%- if message.role == "user" %}
        {{- '<|im_start|>user\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role == "assistant" %}
    """
    + _THOUGHT
    + """
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last_query_index %}{{- '<think>\\n' + reasoning|trim + '\\n</think>\\n\\n' }}{%- endif %}
        {{- content }}
        {%- for call in message.tool_calls or [] %}
            {%- set call = call.function or call %}
            {{- ('\\n\\n' if loop.first and content else '\\n' if not loop.first else '') }}
            {{- '<tool_call>\\n<function=' + call.name + '>\\n' }}
            {%- if call.arguments is mapping %}
                {%- for name, value in call.arguments | items %}
                    {{- '<parameter=' + name + '>\\n' }}
                    {{- value if value is string else value | tojson }}
                    {{- '\\n</parameter>\\n' }}
                {%- endfor %}
            {%- elif call.arguments %}{{- call.arguments }}{%- endif %}
            {{- '</function>\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    """
    + _RESULT
    + """
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}
    {%- else %}{{- '<think>\\n' }}{%- endif %}
{%- endif %}"""
)


def qwen3() -> Any:
    """Return a tokenizer with Qwen3's added tokens and a template like Qwen3's."""
    return _build(SPECIAL, ORDINARY, QWEN3_TEMPLATE)


def qwen3_5() -> Any:
    """Return a tokenizer with Qwen3.5's added tokens and a template like Qwen3.5's."""
    return _build([*SPECIAL, *QWEN3_5], ORDINARY, QWEN3_5_TEMPLATE)


def _build(special: list[str], ordinary: list[str], template: str) -> Any:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=640, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    sources = sorted(Path(__file__).parent.glob("t*.py"))
    tokenizer.train_from_iterator([source.read_text() for source in sources], trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in ordinary])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = template
    return fast
