"""The policy of training: prompt ids in, sampled ids with log-probabilities out, through slime's own generation.

A `Conversation` is token-exact. The next prompt is the last one, the ids that were sampled, and the ids of the new messages, if
the template can be shown to extend it (`chat_codec.prompts`). Otherwise all messages are rendered, in which our own
replies keep their ids where the template left their text unchanged (`chat_codec.renderer`); such a prompt begins a new
segment. In an `AppendedConversation` what the environment answers follows between ``<interpreter>`` tags, without a new role,
so its prompts always extend each other unless something is left out.

Guarantees: sampled text is never tokenised. Observations are, once, and cannot write control tokens. Ids, log-probabilities and
weight versions are the engine's. A reply that a weight update or an abort interrupts goes on where it stopped; nothing is sampled
twice. All requests of an episode go to the engine that has its prefix cached.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentrl.protocol import Ending
from agentrl.rollout.actions import Opening, Reply, Tools
from agentrl.rollout.pictures import Pictures, numbers_of
from agentrl.rollout.play import Kept, Policy
from agentrl.rollout.records import EpisodeRecord
from chat_codec.detokenize import Vocabulary
from chat_codec.formats import REASONING_FORMATS, TOOL_FORMATS, ReplyFormat, tool_format_of
from chat_codec.renderer import PROMPT_END_TOKENS, Renderer, Served, ServedReply
from chat_codec.reply_parser import MessageBuilder, ReplyParser
from groundwork.chat_messages import Message
from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.rollout.generation import GenerateState, generate
from slime.rollout.segments import SampledTurn
from slime.utils.types import PrefixCacheInfo, Sample


class ChatCodec:
    """What a model's tokenizer and chat template mean: shared by all conversations of a process."""

    def __init__(self, tokenizer: Any) -> None:
        """Read the template of a ``transformers`` tokenizer.

        Raises:
            RenderError: it has no chat template.
            ConfigError: its template cannot be rendered safely.
        """
        self.renderer = Renderer(tokenizer)
        self._vocabulary = Vocabulary(tokenizer)
        template = str(tokenizer.chat_template)
        thought = REASONING_FORMATS["qwen3"] if "</think>" in template else None
        self.form = ReplyFormat(thought, TOOL_FORMATS[tool_format_of(template)], thought)

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without what frames messages."""
        text = self._vocabulary.detokenizer()
        return text.push(ids) + text.finish()

    def read(self, prompt_ids: Sequence[int], ids: Sequence[int], tools: Tools, turn: int) -> Reply:
        """Return the reply ``ids`` to a prompt as a message; the ids of its calls name the ``turn``."""
        reasoning, calls = self.form.reasoning, self.form.tools
        parser = ReplyParser(
            reasoning=reasoning,
            tools=calls.parser(schemas_of(tools), lambda number: f"call_{turn}_{number}") if calls and tools else None,
            inside_reasoning=self.renderer.thought_at_end(prompt_ids, reasoning) == "open" if reasoning else False,
        )
        text = self._vocabulary.detokenizer()
        builder = MessageBuilder()
        for delta in [*parser.push(text.push(ids)), *parser.push(text.finish()), *parser.finish()]:
            builder.add(delta)
        return Reply(builder.message(), parser.malformed, parser.thought)


def schemas_of(tools: Tools) -> dict[str, Mapping[str, Any]]:
    """Return the parameters of the offered functions by name."""
    return {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}


@dataclass
class Conversation:
    """Messages, and the ids of the replies among them.

    Attributes:
        codec: of the model.
        messages: so far; only `said`, `heard` and `replace` change them.
        tools: that the model may call.
        keywords: for the chat template.
        rendered: number of prompts after the first that were no extension.
    """

    codec: ChatCodec
    messages: list[Message]
    tools: Tools = ()
    keywords: Mapping[str, Any] = field(default_factory=dict[str, Any])
    rendered: int = 0
    _replies: dict[int, ServedReply] = field(default_factory=dict[int, ServedReply])
    _last: tuple[list[int], int, list[int], bool] | None = None

    def prompt(self) -> list[int]:
        """Return the ids of the next prompt.

        Raises:
            RenderError: the template refuses the messages.
        """
        renderer = self.codec.renderer
        if self._last is not None:
            prompt_ids, position, sampled, thought = self._last
            extended = renderer.extended(
                prompt_ids, self.messages, position, sampled, self.tools, self.keywords, thought=thought
            )
            if extended is not None:
                return extended
            self.rendered += 1
        return self._whole(self.messages, self._replies)

    def read(self, prompt_ids: Sequence[int], ids: Sequence[int], turn: int) -> Reply:
        """Return the reply ``ids`` to a prompt as a message."""
        return self.codec.read(prompt_ids, ids, self.tools, turn)

    def length_of(self, kept: Sequence[tuple[int | None, Message]]) -> int:
        """Return the number of tokens of the prompt after `replace`."""
        return len(self._whole([message for _, message in kept], self._moved(kept)))

    def said(self, prompt_ids: list[int], sampled: list[int], reply: Reply) -> None:
        """Add a reply."""
        position = len(self.messages)
        self.messages.append(reply.message)
        self._replies[position] = ServedReply(array("i", sampled), array("i", prompt_ids[-PROMPT_END_TOKENS:]))
        self._last = (prompt_ids, position, sampled, reply.thought)

    def heard(self, messages: Sequence[Message]) -> None:
        """Add what followed a reply."""
        self.messages += messages

    def replace(self, kept: Sequence[tuple[int | None, Message]]) -> None:
        """Put other messages in place of all, each with its old position, or None if it is new or changed."""
        self._replies = self._moved(kept)
        self.messages = [message for _, message in kept]
        self._last = None
        self.rendered += 1

    def _moved(self, kept: Sequence[tuple[int | None, Message]]) -> dict[int, ServedReply]:
        old = self._replies
        return {new: old[was] for new, (was, _) in enumerate(kept) if was is not None and was in old}

    def _whole(self, messages: Sequence[Message], replies: Mapping[int, ServedReply]) -> list[int]:
        served = Served(replies, self.codec.form, schemas_of(self.tools))
        return self.codec.renderer.render(messages, self.tools, self.keywords, served)


@dataclass
class AppendedConversation:
    """Messages, and the ids of those that follow the first prompt; see `Conversation`."""

    codec: ChatCodec
    messages: list[Message]
    keywords: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tools: Tools = ()
    rendered: int = 0

    def __post_init__(self) -> None:
        self._first = len(self.messages)
        self._begin = self.codec.renderer.render(self.messages, (), self.keywords)
        self._ids: list[list[int]] = []

    def prompt(self) -> list[int]:
        """Return the ids of the next prompt."""
        return [*self._begin, *(item for ids in self._ids for item in ids)]

    def read(self, prompt_ids: Sequence[int], ids: Sequence[int], turn: int) -> Reply:
        """Return a reply as a message: all of its text, thoughts and calls included."""
        return Reply({"role": "assistant", "content": self.codec.text(ids)})

    def length_of(self, kept: Sequence[tuple[int | None, Message]]) -> int:
        """Return the number of tokens of the prompt after `replace`."""
        return len(self._begin) + sum(map(len, self._moved(kept)))

    def said(self, prompt_ids: list[int], sampled: list[int], reply: Reply) -> None:
        """Add a reply."""
        self.messages.append(reply.message)
        self._ids.append(list(sampled))

    def heard(self, messages: Sequence[Message]) -> None:
        """Add what followed a reply."""
        self.messages += messages
        self._ids += map(self._observed, messages)

    def replace(self, kept: Sequence[tuple[int | None, Message]]) -> None:
        """Put other messages in place of all, each with its old position, or None if it is new or changed."""
        self._ids = self._moved(kept)
        self.messages = [message for _, message in kept]
        self.rendered += 1

    def _moved(self, kept: Sequence[tuple[int | None, Message]]) -> list[list[int]]:
        after = kept[self._first :]
        return [self._observed(message) if was is None else self._ids[was - self._first] for was, message in after]

    def _observed(self, message: Message) -> list[int]:
        return self.codec.renderer.encode_text(f"\n\n<interpreter>\n{message['content']}\n</interpreter>\n\n")


@dataclass(frozen=True)
class Turn:
    """A reply, its id for the judge, the numbers of its prompt's pictures, and its score."""

    sampled: SampledTurn
    step_id: str
    pictures: tuple[int, ...] = ()
    score: float | None = None


class TokenPolicy(Policy):
    """Samples the replies of one episode.

    Attributes:
        turns: replies so far, in order.
        first_prompt: ids of the first prompt.
        pictures: that the policy saw.
        prefix_cache: cached tokens of all requests.
    """

    def __init__(
        self,
        args: Arguments,
        origin: Sample,
        sampling_params: dict[str, Any],
        codec: ChatCodec,
        record: EpisodeRecord,
        *,
        evaluation: bool,
        keywords: Mapping[str, Any] | None = None,
        processor: Any | None = None,
    ) -> None:
        """Prepare.

        Args:
            args: of the run.
            origin: the sample that the episode answers.
            sampling_params: of its replies; ``max_new_tokens`` bounds one reply.
            codec: of the model.
            record: gets tokens and pictures.
            evaluation: whether this is an evaluation.
            keywords: for the chat template; those of the environment win.
            processor: of the policy's pictures; None: it has no eyes.

        Raises:
            ConfigError: the run replays routed experts, which segments do not carry.
        """
        if args.use_rollout_routing_replay:
            raise ConfigError("the agent loop keeps no routed experts; remove --use-rollout-routing-replay")
        self._args, self._origin, self._evaluation = args, origin, evaluation
        self._parameters = sampling_params
        self._codec, self._record, self._keywords = codec, record, keywords or {}
        self._conversation: Conversation | AppendedConversation
        self._asked: list[int] = []
        self._reply: Sample | None = None
        self.context = args.eval_max_context_len if evaluation else args.rollout_max_context_len
        self.reply_tokens = sampling_params["max_new_tokens"]
        self.turns: list[Turn] = []
        self.first_prompt: list[int] = []
        self.pictures = Pictures(processor)
        self.prefix_cache = PrefixCacheInfo()

    @property
    def stopping(self) -> bool:  # type: ignore[override]
        """Whether the rollout is being aborted."""
        return GenerateState(self._args).aborted

    @property
    def messages(self) -> list[Message]:  # type: ignore[override]
        """The conversation so far."""
        return self._conversation.messages

    @property
    def rendered(self) -> int:
        """Number of prompts after the first that were no extension."""
        return self._conversation.rendered

    def begin(self, begin: Opening) -> None:
        """See `Policy.begin`. Replies also end with the format's stops, which stay part of them."""
        keywords = {**self._keywords, **begin.keywords}
        if begin.form.appended:
            self._conversation = AppendedConversation(self._codec, list(begin.messages), keywords)
        else:
            self._conversation = Conversation(self._codec, list(begin.messages), begin.tools, keywords)
        if begin.form.stops:
            stops = self._parameters.get("stop") or []
            own = [stops] if isinstance(stops, str) else stops
            self._parameters = {**self._parameters, "stop": [*own, *begin.form.stops]}

    async def look(self, encoded: Sequence[str]) -> list[Message]:
        """See `Policy.look`; the record gets the pictures as well."""
        parts = await self.pictures.add(encoded)
        for part in parts:
            await asyncio.to_thread(self._record.picture, part["number"], self.pictures.image(part["number"]))
        return parts

    def prepare(self) -> int:
        """See `Policy.prepare`."""
        self._asked = self._conversation.prompt()
        if not self.first_prompt:
            self.first_prompt = self.pictures.expanded(self._asked, numbers_of(self.messages))
        return len(self._asked) + self.pictures.more_tokens(self.messages)

    def length_of(self, kept: Kept) -> int:
        """See `Policy.length_of`."""
        more = self.pictures.more_tokens([message for _, message in kept])
        return self._conversation.length_of(kept) + more

    def replace(self, kept: Kept) -> None:
        """See `Policy.replace`."""
        self._conversation.replace(kept)

    def heard(self, messages: Sequence[Message]) -> None:
        """See `Policy.heard`."""
        self._conversation.heard(messages)

    async def reply(self, turn: int, most: int) -> Reply | None:
        """See `Policy.reply`.

        Raises:
            EngineError: the engine keeps ending the request.
        """
        numbers = tuple(numbers_of(self.messages))
        if self._reply is None:
            self._reply = self._new_reply(numbers)
        parameters = {**self._parameters, "max_new_tokens": min(most, self.reply_tokens)}
        await generate(self._args, self._reply, parameters, self._evaluation)
        if self._reply.status == Sample.Status.ABORTED:
            return None
        sample, self._reply = self._reply, None
        self.prefix_cache.cached_tokens += sample.prefix_cache_info.cached_tokens
        self.prefix_cache.total_prompt_tokens += sample.prefix_cache_info.total_prompt_tokens
        if not sample.response_length:
            return Reply({}, ending=Ending.CONTEXT)
        sampled = turn_of(sample)
        ids = list(sampled.response_ids)
        reply = self._conversation.read(self._asked, ids, turn)
        self._conversation.said(self._asked, ids, reply)
        self.turns.append(Turn(sampled, f"{self._record.name}:{turn}", numbers))
        self._record.policy(
            *(sampled.prompt_ids, ids, sampled.log_probs),
            t=turn,
            message=reply.message,
            weight_spans=[list(span) for span in sampled.weight_spans],
            finish=sample.status.value,
        )
        over = Ending.REPLY_TOKENS if sample.status == Sample.Status.TRUNCATED else None
        return replace(reply, tokens=len(ids), ending=over)

    def _new_reply(self, numbers: Sequence[int]) -> Sample:
        """Return a reply that has not begun; its pictures are at the model's size."""
        images = self.pictures.images(numbers)
        return Sample(
            group_index=self._origin.group_index,
            index=self._origin.index,
            session_id=self._record.name,
            tokens=self.pictures.expanded(self._asked, numbers),
            multimodal_inputs={"images": images, "videos": None} if images else None,
        )


def turn_of(reply: Sample) -> SampledTurn:
    """Return a finished reply with its prompt."""
    start = len(reply.tokens) - reply.response_length
    return SampledTurn(
        prompt_ids=reply.tokens[:start],
        response_ids=reply.tokens[start:],
        log_probs=reply.rollout_log_probs or [],
        weight_spans=[(str(version), int(first), int(end)) for version, first, end in reply.weight_spans],
    )
