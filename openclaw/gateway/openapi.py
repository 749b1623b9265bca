"""The parts of the OpenAPI description that FastAPI cannot derive: request bodies, answers, the shape of errors.

Guarantees: `/openapi.json` matches the routes; the fuzz test checks it. All routes of an API share one description of errors.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from openclaw.gateway.adapters import EXPORT_PATH, ROLLBACK_PATH, TAR, RollbackRequest
from openclaw.gateway.dialects import CHAT, COUNT_TOKENS, MESSAGES, RESPONSES, TEXT
from openclaw.gateway.dialects.anthropic import CountRequest, MessagesRequest
from openclaw.gateway.dialects.responses import ResponseRequest
from openclaw.gateway.dialects.text_completions import CompletionRequest
from openclaw.gateway.episodes import (
    EPISODES_PATH,
    GROUP_CLOSE_PATH,
    REWARD_PATH,
    EpisodeRequest,
    GroupRequest,
    RewardRequest,
)
from openclaw.gateway.errors import is_below_messages
from openclaw.gateway.lessons import LESSON_PATH, LESSONS_PATH, ME_PATH, LessonChange, LessonRequest, PersonChange
from openclaw.gateway.schema import ChatRequest
from openclaw.gateway.turns import FeedbackRequest

ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
MESSAGES_ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["type", "error", "request_id"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
        "request_id": {"type": ["string", "null"]},
    },
}
"""Below the Messages API's path."""
MEANINGS = {
    400: "the request cannot be answered; `error.param` names the field that is wrong",
    401: "the key is missing or unknown",
    403: "the request comes from a page or host that may not use this server, or needs another key",
    404: "not found",
    408: "the body came too slowly",
    409: "the request contradicts the ledger, or is not possible now",
    413: "the body is too large",
    415: "the body is not JSON by its `Content-Type`",
    429: "the key is over its limits; `Retry-After` says when to retry",
    500: "the server or its engine failed",
    503: "the engine is unavailable; send the request again",
}
COMPLETION: dict[str, Any] = {
    "type": "object",
    "required": ["id", "object", "created", "model", "choices", "usage"],
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "chat.completion"},
        "created": {"type": "integer"},
        "model": {"type": "string"},
        "system_fingerprint": {"type": "string"},
        "choices": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["index", "message", "finish_reason"],
                "properties": {
                    "index": {"type": "integer"},
                    "message": {"type": "object", "required": ["role", "content"]},
                    "logprobs": {"type": ["object", "null"]},
                    "finish_reason": {"enum": ["stop", "length", "tool_calls"]},
                },
            },
        },
        "usage": {"type": "object", "required": ["prompt_tokens", "completion_tokens", "total_tokens"]},
    },
}


TEXT_COMPLETION: dict[str, Any] = {
    **COMPLETION,
    "properties": {
        **COMPLETION["properties"],
        "object": {"const": "text_completion"},
        "choices": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["index", "text", "finish_reason"],
                "properties": {
                    "index": {"type": "integer"},
                    "text": {"type": "string"},
                    "logprobs": {"type": ["object", "null"]},
                    "finish_reason": {"enum": ["stop", "length"]},
                },
            },
        },
    },
}


RESPONSE: dict[str, Any] = {
    "type": "object",
    "required": ["id", "object", "created_at", "status", "model", "output", "usage"],
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "response"},
        "created_at": {"type": "integer"},
        "status": {"enum": ["completed", "incomplete"]},
        "model": {"type": "string"},
        "output": {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["id", "type"]}},
        "usage": {"type": "object", "required": ["input_tokens", "output_tokens", "total_tokens"]},
    },
}
MESSAGE: dict[str, Any] = {
    "type": "object",
    "required": ["id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"],
    "properties": {
        "id": {"type": "string"},
        "type": {"const": "message"},
        "role": {"const": "assistant"},
        "model": {"type": "string"},
        "content": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["type"],
                "properties": {"type": {"enum": ["text", "thinking", "tool_use"]}},
            },
        },
        "stop_reason": {"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]},
        "stop_sequence": {"type": ["string", "null"]},
        "usage": {"type": "object", "required": ["input_tokens", "output_tokens"]},
    },
}
COUNT: dict[str, Any] = {
    "type": "object",
    "required": ["input_tokens"],
    "properties": {"input_tokens": {"type": "integer", "minimum": 0}},
}


EVERY_ROUTE = (401, 403, 429, 500)
EVERY_API_ROUTE = (400, 404, 408, 409, 413, 415, 503)
CHAT_OPERATION = {
    "summary": "Chat Completions",
    "description": "Answer a conversation, streamed or whole.",
    "operationId": "chat_completions",
}
TEXT_OPERATION = {
    "summary": "Text Completions",
    "description": "Continue a text or token ids, streamed or whole; never trained.",
    "operationId": "text_completions",
}
RESPONSE_OPERATION = {
    "summary": "Responses",
    "description": "Answer the items of a conversation, streamed or whole.",
    "operationId": "responses",
}
MESSAGES_OPERATION = {
    "summary": "Messages",
    "description": "Answer a conversation in Anthropic's Messages API, streamed or whole.",
    "operationId": "messages",
}
OPERATIONS = {
    CHAT.path: CHAT_OPERATION,
    TEXT.path: TEXT_OPERATION,
    RESPONSES.path: RESPONSE_OPERATION,
    MESSAGES.path: MESSAGES_OPERATION,
}
"""Of the endpoints that the framework does not know (`openclaw.gateway.chat.Completions`)."""
BODIES: dict[str, type[BaseModel]] = {
    CHAT.path: ChatRequest,
    TEXT.path: CompletionRequest,
    RESPONSES.path: ResponseRequest,
    MESSAGES.path: MessagesRequest,
    COUNT_TOKENS.path: CountRequest,
}
BODIES |= {"/v1/feedback": FeedbackRequest}
BODIES |= {
    LESSONS_PATH: LessonRequest,
    LESSON_PATH: LessonChange,
    ME_PATH: PersonChange,
    ROLLBACK_PATH: RollbackRequest,
}
BODIES |= {EPISODES_PATH: EpisodeRequest, REWARD_PATH: RewardRequest, GROUP_CLOSE_PATH: GroupRequest}
ANSWERS: dict[str, dict[str, Any]] = {
    CHAT.path: {
        "application/json": {"schema": COMPLETION},
        "text/event-stream": {"schema": {"type": "string"}},
    },
    TEXT.path: {
        "application/json": {"schema": TEXT_COMPLETION},
        "text/event-stream": {"schema": {"type": "string"}},
    },
    RESPONSES.path: {
        "application/json": {"schema": RESPONSE},
        "text/event-stream": {"schema": {"type": "string"}},
    },
    MESSAGES.path: {
        "application/json": {"schema": MESSAGE},
        "text/event-stream": {"schema": {"type": "string"}},
    },
    COUNT_TOKENS.path: {"application/json": {"schema": COUNT}},
    "/": {"application/json": {"schema": {"type": "object"}}, "text/html": {"schema": {"type": "string"}}},
    EXPORT_PATH: {TAR: {"schema": {"type": "string", "format": "binary"}}},
    "/metrics": {"text/plain": {"schema": {"type": "string"}}},
}


def describe(description: dict[str, Any]) -> None:
    """Add the missing parts to an OpenAPI description, in place."""
    for path, operation in OPERATIONS.items():
        description["paths"][path] = {"post": dict(operation, responses={"200": {"description": "The reply"}})}
    for path, operations in description["paths"].items():
        statuses = [*EVERY_ROUTE, *(EVERY_API_ROUTE if path.startswith("/v1/") else ())]
        for method, operation in operations.items():
            responses = operation["responses"]
            responses.pop("422", None)
            responses |= {str(status): _error(status, path) for status in sorted(statuses)}
            if path in ANSWERS:
                responses["200"]["content"] = ANSWERS[path]
            if path in BODIES and method not in ("get", "delete"):
                operation["requestBody"] = _request_body(BODIES[path])
    components = description.setdefault("components", {}).setdefault("schemas", {})
    for model in BODIES.values():
        parts = _schema(model).get("$defs", {})
        components |= {f"{model.__name__}_{name}": part for name, part in parts.items()}


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema(ref_template=f"#/components/schemas/{model.__name__}_{{model}}")


def _request_body(model: type[BaseModel]) -> dict[str, Any]:
    schema = {name: value for name, value in _schema(model).items() if name != "$defs"}
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _error(status: int, path: str) -> dict[str, Any]:
    schema = MESSAGES_ERROR if is_below_messages(path) else ERROR
    return {"description": MEANINGS[status], "content": {"application/json": {"schema": schema}}}
