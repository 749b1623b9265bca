"""Declare the runtime process's environment variables: name, type, default and meaning of each.

They are declared only here. `openclaw.config.runtime.RuntimeConfig` adds the checks, and the code reads that class. A method
declares its own variables (`openclaw.config.method_config`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from groundwork.variables import EnvironmentConfig, variable

GATE_PATH = "openclaw.gate.plugin.decide"
"""The value of ``--before-push-path`` that switches the gate on."""


@dataclass(frozen=True, kw_only=True)
class GateVariables(EnvironmentConfig):
    """One field per variable."""

    gate_share: float = variable(
        "OPENCLAW_GATE_SHARE",
        0.1,
        "share of the judged turns that are kept out of training, as probes of the gate; 0: none",
        minimum=0.0,
        maximum=0.5,
    )
    gate_probes: int = variable(
        "OPENCLAW_GATE_PROBES", 64, "most liked and most disliked replies that the gate scores per update", minimum=1
    )
    gate_tokens: int = variable(
        "OPENCLAW_GATE_TOKENS",
        65536,
        "most tokens of prompts and stored replies that the gate reads per update and version",
        minimum=16,
    )
    gate_reply_tokens: int = variable(
        "OPENCLAW_GATE_REPLY_TOKENS",
        128,
        "longest greedy reply of the gate in tokens; 0: no greedy replies to the users' prompts",
        minimum=0,
    )
    gate_replies: int = variable(
        "OPENCLAW_GATE_REPLIES", 8, "users' prompts that both versions answer greedily per update", minimum=0
    )
    gate_tasks: str | None = variable(
        "OPENCLAW_GATE_TASKS",
        None,
        "file of tasks with answers that can be verified, as JSON lines with messages and text, number or pattern; unset: none",
    )
    gate_task_tokens: int = variable(
        "OPENCLAW_GATE_TASK_TOKENS", 512, "longest greedy reply to a task of OPENCLAW_GATE_TASKS in tokens", minimum=1
    )
    gate_fewest: int = variable(
        "OPENCLAW_GATE_FEWEST",
        4,
        "fewest parts of sessions with liked and with disliked probes; with fewer the users' opinions do not decide",
        minimum=2,
    )
    gate_errors: float = variable(
        "OPENCLAW_GATE_ERRORS",
        1.25,
        "standard errors below zero from which a margin counts as a fall",
        minimum=0.0,
    )
    gate_margin: float = variable(
        "OPENCLAW_GATE_MARGIN", 0.0005, "nats per token below zero from which a margin counts as a fall", minimum=0.0
    )
    gate_owner_margin: float = variable(
        "OPENCLAW_GATE_OWNER_MARGIN",
        0.02,
        "nats per token below zero from which the margin of one of several owners counts as a fall, if chance does not explain it",
        minimum=0.0,
    )
    gate_memory: int = variable(
        "OPENCLAW_GATE_MEMORY",
        48,
        "accepted versions that an update is compared with, so that many small falls do not add up",
        minimum=1,
    )
    gate_drift: float = variable(
        "OPENCLAW_GATE_DRIFT", 1.0, "largest mean change of a probe's score in nats per token", above=0.0
    )
    gate_jump: float = variable(
        "OPENCLAW_GATE_JUMP", 3.0, "largest fall of the score of a liked probe in nats per token", above=0.0
    )
    gate_degenerate: float = variable(
        "OPENCLAW_GATE_DEGENERATE",
        0.25,
        "largest rise of the share of degenerate greedy replies: cut off, repeating, or with broken tool calls",
        minimum=0.0,
        maximum=1.0,
    )
    gate_canary: float | None = variable(
        "GATE_CANARY",
        None,
        "share of conversations that one engine serves with an update before the others get it, see gate.md; 0: none, the gate only "
        "asks that engine; unset: all engines get an update at once",
        minimum=0.0,
        maximum=0.5,
    )
    canary_seconds: float = variable(
        "OPENCLAW_CANARY_SECONDS", 30.0, "longest time in which the first engine serves conversations alone", above=0.0
    )
    canary_turns: int = variable(
        "OPENCLAW_CANARY_TURNS",
        20,
        "replies of the first engine that are enough to decide, before the time is up",
        minimum=1,
    )
    canary_difference: float = variable(
        "OPENCLAW_CANARY_DIFFERENCE",
        0.1,
        "largest mean difference between the log probabilities of the first engine and the trainer, in nats per token",
        above=0.0,
    )
    canary_slowdown: float = variable(
        "OPENCLAW_CANARY_SLOWDOWN",
        3.0,
        "how many times as long per token the first engine's replies may take",
        above=1.0,
    )
    gate_certificate: bool = variable(
        "OPENCLAW_CERTIFICATE",
        True,
        "1: the gate proves that an update was learned and that the engines answer with it, see certificate.md; 0: it does not",
    )
    gate_offer: int = variable(
        "OPENCLAW_GATE_OFFER",
        3,
        "refusals of a series by the users' opinions after which openclaw-rl accept is offered",
        minimum=1,
    )


@dataclass(frozen=True, kw_only=True)
class RuntimeVariables(GateVariables):
    """One field per variable; those of the gate are in the class that this one extends."""

    host: str = variable(
        "HOST",
        "127.0.0.1",
        "address that the gateway binds; any address except loopback needs a key",
        aliases=("OPENCLAW_HOST",),
    )
    port: int = variable("PORT", 30000, "port of the gateway", minimum=0, maximum=65535, aliases=("OPENCLAW_PORT",))
    api_key: str | None = variable(
        "SGLANG_API_KEY",
        None,
        "key that clients send as a Bearer token; unset: no key needed",
        aliases=("OPENCLAW_API_KEY",),
        secret=True,
    )
    api_keys_file: str | None = variable(
        "OPENCLAW_API_KEYS_FILE",
        None,
        "file of keys, one `name:key` or `name: sha256:HEX` per line, also `parent/child:key`, `name (admin):key` and `name (sampled=100000):key`, a quota; "
        "readable only by its owner; reloaded when it changes",
    )
    rate_limit_requests: int | None = variable(
        "OPENCLAW_RATE_LIMIT_REQUESTS", None, "most requests per minute and key; unset: no limit", minimum=1
    )
    rate_limit_tokens: int | None = variable(
        "OPENCLAW_RATE_LIMIT_TOKENS",
        None,
        "most tokens, prompt plus reply, per minute and key; unset: no limit",
        minimum=1,
    )
    quotas: str | None = variable(
        "OPENCLAW_QUOTAS",
        None,
        "most tokens per key and day (UTC) as sampled=N, trained=N or total=N (prompts and replies), several with commas; a keys file may say "
        "otherwise for a key; unset: no quota",
    )
    prices: str | None = variable(
        "OPENCLAW_PRICES",
        None,
        "dollars per million tokens that GET /v1/usage multiplies by, such as prefill=0.1,cached=0.01,sampled=0.4,judged=0.1,trained=1; "
        "unset: no dollars",
    )
    rate_limit_concurrent: int | None = variable(
        "OPENCLAW_RATE_LIMIT_CONCURRENT",
        None,
        "most concurrent requests per key; unset: a quarter of OPENCLAW_MAX_REQUESTS with a keys file, else no limit",
        minimum=1,
    )
    allowed_hosts: str | None = variable(
        "OPENCLAW_ALLOWED_HOSTS",
        None,
        "names, separated by commas, under which clients may address the gateway besides loopback and HOST; unset: none without a key, all with one",
    )
    allowed_origins: str | None = variable(
        "OPENCLAW_ALLOWED_ORIGINS",
        None,
        "origins, separated by commas, of web pages that may use the gateway, for example https://chat.example.org; unset: none",
    )
    rate_limit_feedback: int = variable(
        "OPENCLAW_RATE_LIMIT_FEEDBACK", 600, "most requests with feedback per minute and key", minimum=1
    )
    tls_cert: str | None = variable(
        "OPENCLAW_TLS_CERT", None, "certificate chain (PEM) of the gateway, which then serves https"
    )
    tls_key: str | None = variable("OPENCLAW_TLS_KEY", None, "private key (PEM) of OPENCLAW_TLS_CERT")
    serve_rollouts: bool = variable(
        "OPENCLAW_SERVE_ROLLOUTS",
        False,
        "1: GET /v1/rollouts returns the recorded turns that a key owns, to an admin key all",
    )
    log_contents: bool = variable(
        "OPENCLAW_LOG_CONTENTS", False, "1: log every conversation in plain text, for debugging"
    )
    served_model_name: str | None = variable(
        "SERVED_MODEL_NAME", None, "model name in replies; default: the checkpoint's"
    )
    context_length: int = variable("CONTEXT_LENGTH", 32768, "most tokens of prompt plus reply", minimum=16)
    reasoning_parser: str | None = variable(
        "REASONING_PARSER",
        None,
        "format of the model's reasoning; default: qwen3 when the chat template has </think>, else none",
        choices=("qwen3", "deepseek-r1", "deepseek_r1", "generic", "none"),
    )
    reasoning_tags: str | None = variable(
        "OPENCLAW_REASONING_TAGS",
        None,
        "opening and closing tag of a thought, separated by a space, for REASONING_PARSER=generic",
    )
    tool_call_parser: str | None = variable(
        "TOOL_CALL_PARSER",
        None,
        "format of the model's tool calls: JSON in <tool_call> tags (qwen25, qwen, qwen3, hermes), XML in them (qwen3_coder, qwen3_xml), or a JSON object as the whole answer (generic); default: detected from the chat template",
        choices=("qwen25", "qwen", "qwen3", "hermes", "qwen3_coder", "qwen3_xml", "generic", "none"),
    )
    temperature: float = variable("OPENCLAW_TEMPERATURE", 0.6, "temperature of requests that set none", minimum=0.0)
    top_p: float = variable("OPENCLAW_TOP_P", 1.0, "top_p of requests that set none", maximum=1.0, above=0.0)
    max_tokens: int = variable(
        "OPENCLAW_MAX_TOKENS", 8192, "most tokens in a reply if the request sets no limit", minimum=1
    )
    policy_url: str | None = variable("OPENCLAW_POLICY_URL", None, "URL of the policy engine or its router")
    adapter_per_person: bool = variable(
        "OPENCLAW_ADAPTER_PER_PERSON",
        False,
        "1: the policy engine answers each person with an adapter of their own; a run sets it, from ADAPTERS",
    )
    judge_url: str | None = variable("OPENCLAW_JUDGE_URL", None, "URL of the judge engine")
    tokenizer: str | None = variable(
        "OPENCLAW_TOKENIZER",
        None,
        "folder of the policy's tokenizer; a run has that of its checkpoint, so another one is refused",
        aliases=("TOKENIZER_PATH",),
    )
    judge_base_url: str | None = variable(
        "OPENCLAW_JUDGE_BASE_URL",
        None,
        "OpenAI-compatible endpoint that judges instead of an engine of the run, like https://HOST/v1; it reads the conversations",
    )
    judge_model: str | None = variable("OPENCLAW_JUDGE_MODEL", None, "model that OPENCLAW_JUDGE_BASE_URL is asked for")
    judge_api_key: str | None = variable("OPENCLAW_JUDGE_API_KEY", None, "key of OPENCLAW_JUDGE_BASE_URL", secret=True)
    judge_class: str | None = variable(
        "OPENCLAW_JUDGE_CLASS",
        None,
        "Python class that judges instead of an engine, as module.Class with score(prompt, response, next_state)",
    )
    judge_tokenizer: str | None = variable("OPENCLAW_JUDGE_TOKENIZER", None, "folder or name of the judge's tokenizer")
    ledger: str | None = variable("OPENCLAW_LEDGER", None, "file of the ledger (SQLite)")
    record_bytes: int = variable(
        "OPENCLAW_RECORD_BYTES",
        1 << 30,
        "largest size of each of the JSON-lines files beside a run's ledger, conversations and verdicts; 0: none are written",
        minimum=0,
    )
    run_dir: str | None = variable(
        "OPENCLAW_RUN_DIR", None, "folder of the run; the gateway shows whether its training is paused"
    )
    method: str | None = variable("OPENCLAW_METHOD", None, "learning method as module.attribute")
    eval_mode: bool = variable(
        "OPENCLAW_EVAL_MODE", False, "1: record turns with the reason 'evaluation', and never judge or train them"
    )
    offline: bool = variable(
        "OPENCLAW_OFFLINE",
        False,
        "1: score the turns of logs, train them, and end training when they are used; DATA_PATH sets it",
    )
    score_ahead: int = variable(
        "OPENCLAW_SCORE_AHEAD",
        32,
        "turns of logs are scored while fewer turns and samples than this wait for the judge or a batch; DATA_PATH sets one batch",
        minimum=1,
    )
    engine_wait_seconds: float = variable(
        "OPENCLAW_ENGINE_WAIT_SECONDS", 60.0, "seconds that requests wait for an unavailable engine", minimum=0.0
    )
    grace_seconds: int = variable(
        "OPENCLAW_GRACE_SECONDS",
        8,
        "seconds that running replies get to finish when the runtime stops",
        minimum=0,
    )
    frozen_seconds: float = variable(
        "OPENCLAW_FROZEN_SECONDS",
        20.0,
        "a runtime process that answers nothing for this many seconds is ended and restarted",
        above=0.0,
    )
    session_idle_seconds: float = variable(
        "OPENCLAW_SESSION_IDLE_SECONDS", 3600.0, "a session ends after this many seconds without a request", above=0.0
    )
    max_sessions: int = variable(
        "OPENCLAW_MAX_SESSIONS", 10000, "sessions kept in memory; older ones are reloaded from the ledger", minimum=1
    )
    regenerated: Literal["exclude", "negative"] = variable(
        "OPENCLAW_REGENERATED",
        "exclude",
        "turns whose reply the user regenerated: exclude leaves them out of training, negative judges them by that",
    )
    gateway_workers: int | None = variable(
        "GATEWAY_WORKERS",
        None,
        "processes that answer requests for replies, beside the one that leads; 1: that one alone; unset: one for every four cores that "
        "the process may use, at most 8",
        minimum=1,
        maximum=64,
    )
    max_requests: int = variable(
        "OPENCLAW_MAX_REQUESTS",
        1024,
        "most concurrent requests, running or waiting; further ones get 503 with Retry-After",
        minimum=1,
    )
    max_connections: int = variable(
        "OPENCLAW_MAX_CONNECTIONS",
        2048,
        "most open connections; a further one closes the one that is idle for longest, or gets 503 if all are being answered",
        minimum=1,
    )
    keepalive_seconds: float = variable(
        "OPENCLAW_KEEPALIVE_SECONDS",
        2.0,
        "seconds of silence after which a stream gets a comment, even before its first token",
        above=0.0,
    )
    max_body_bytes: int = variable("OPENCLAW_MAX_BODY_BYTES", 33554432, "largest request body in bytes", minimum=1024)
    redact: Literal["secrets", "personal", "off"] = variable(
        "OPENCLAW_REDACT",
        "secrets",
        "what to redact before a turn is stored; redacted turns are not trained; personal needs pip install 'presidio-analyzer>=2.2.360'",
    )
    lessons: Literal["auto", "confirm", "off"] = variable(
        "OPENCLAW_LESSONS",
        "off",
        "lessons of a person who has not chosen: auto learns them from complaints and puts them into the person's next requests, "
        "confirm asks the person first, off does neither; see lessons.md",
    )
    commands: bool = variable(
        "OPENCLAW_COMMANDS",
        False,
        "1: the gateway itself answers a user's message that begins with /rl, such as /rl good; see commands.md",
    )
    most_lessons: int = variable(
        "OPENCLAW_MOST_LESSONS",
        6,
        "most lessons in a prompt, the newest ones: as many as the model still reads well together; see lessons.md",
        minimum=1,
        maximum=6,
    )
    lesson_turns: Literal["excluded", "served"] = variable(
        "OPENCLAW_LESSON_TURNS",
        "excluded",
        "turns whose prompt had lessons: excluded leaves them out of training, served trains them on the prompt that was served",
    )
    practice: Literal["off", "liked", "trial"] = variable(
        "OPENCLAW_PRACTICE",
        "off",
        "lessons that practice moves into the weights: liked are those with a liked reply, trial also those that no reply has "
        "shown to work yet; needs LoRA; see practice.md",
    )
    practice_tokens: int = variable(
        "OPENCLAW_PRACTICE_TOKENS",
        65536,
        "most tokens of prompts and replies in a round of practice",
        minimum=64,
    )
    practice_rounds: int = variable(
        "OPENCLAW_PRACTICE_ROUNDS", 3, "most rounds of practice with the same lessons in a day", minimum=1
    )
    practice_replay: int = variable(
        "OPENCLAW_PRACTICE_REPLAY",
        0,
        "most of a person's own trained turns that a round of practice trains again, at most twice each; needs --use-tis",
        minimum=0,
        maximum=14,
    )
    practice_rubric: Literal["0", "1", "group"] = variable(
        "OPENCLAW_PRACTICE_RUBRIC",
        "0",
        "1: the replies to a practised prompt are also compared by whether they obey the lessons, as a group with rewards; group: by "
        "one question to the judge about all of them; see group_judge.md",
    )
    retention_days: float | None = variable(
        "OPENCLAW_RETENTION_DAYS",
        None,
        "delete sessions idle for longer than this many days (default: keep)",
        above=0.0,
    )
    prm_m: int | None = variable(
        "PRM_M", None, "votes of each judge; default: the method's", minimum=1, aliases=("MAJORITY_VOTE_N",)
    )
    prm_temperature: float = variable("PRM_TEMPERATURE", 0.6, "temperature of the judge", minimum=0.0)
    prm_max_new_tokens: int = variable("PRM_MAX_NEW_TOKENS", 4096, "longest answer of the judge in tokens", minimum=1)
    prm_step_coef: float = variable(
        "PRM_STEP_COEF", 1.0, "weight of the mean score of an episode's replies in its reward"
    )
    majority_vote_threshold: float = variable(
        "MAJORITY_VOTE_THRESHOLD", 0.6, "least share of valid votes for a majority", maximum=1.0, above=0.0
    )
    judge_quorum: float = variable(
        "OPENCLAW_JUDGE_QUORUM",
        0.5,
        "least share of valid votes among those asked for; with fewer the turn has no score",
        maximum=1.0,
        above=0.0,
    )
    judge_grammar: bool = variable(
        "OPENCLAW_JUDGE_GRAMMAR",
        True,
        "1: the judge's engine ends every answer in one of the allowed boxes; 0 for an engine without a grammar back end",
    )
    judge_prompts: Literal["full", "brief"] = variable(
        "OPENCLAW_JUDGE_PROMPTS", "full", "wording of the judge's prompts; brief is for tiny judges"
    )
    judge_concurrency: int = variable(
        "OPENCLAW_JUDGE_CONCURRENCY", 8, "most turns judged at a time", minimum=1, aliases=("NUM_JUDGE_WORKERS",)
    )
    judge_timeout: float | None = variable(
        "OPENCLAW_JUDGE_TIMEOUT",
        None,
        "seconds that judging a turn may take; default: 120, or three answers of PRM_MAX_NEW_TOKENS at 20 tokens/s",
        above=0.0,
    )
    judge_attempts: int = variable(
        "OPENCLAW_JUDGE_ATTEMPTS",
        8,
        "failed attempts after which a turn is given up while the judge answers others; an outage gives up no turn",
        minimum=1,
    )
    min_response_tokens: int = variable(
        "OPENCLAW_MIN_RESPONSE_TOKENS", 8, "fewest tokens of a reply that is trained", minimum=1
    )
    hygiene: str = variable(
        "OPENCLAW_HYGIENE",
        "truncated,repetition,duplicate,malformed_call,asks_back",
        "rules, separated by commas, that keep turns out of training or correct their score: truncated, repetition, duplicate, off_language, malformed_call, asks_back",
    )
    max_train_tokens: int | None = variable(
        "OPENCLAW_MAX_TRAIN_TOKENS",
        None,
        "most tokens, prompt plus reply, of a turn that is trained; default: CONTEXT_LENGTH",
        minimum=2,
    )
    opd_teacher: Literal["policy", "prm"] = variable(
        "OPENCLAW_OPD_TEACHER", "policy", "engine whose model is the teacher"
    )
    teacher_url: str | None = variable(
        "OPENCLAW_TEACHER_URL",
        None,
        "SGLang server of another model that is the teacher, like http://HOST:PORT; it reads the conversations, see teachers.md",
    )
    teacher_tokenizer: str | None = variable(
        "OPENCLAW_TEACHER_TOKENIZER",
        None,
        "folder or name of the tokenizer and chat template of OPENCLAW_TEACHER_URL's model; default: the policy's",
    )
    teacher_api_key: str | None = variable("OPENCLAW_TEACHER_API_KEY", None, "key of OPENCLAW_TEACHER_URL", secret=True)
    max_tool_turns: int = variable(
        "OPENCLAW_MAX_TOOL_TURNS",
        8,
        "of the turns in a row that only tools react to, this many are trained (reason tool_turns for the others); 0: all",
        minimum=0,
    )
    baseline: bool = variable(
        "OPENCLAW_BASELINE",
        True,
        "1: subtract the mean of an owner's earlier rewards from a reward, for users and for tools; 0: a reward is its advantage",
    )
    owner_share: float = variable(
        "OPENCLAW_OWNER_SHARE",
        0.5,
        "most of a batch that comes from one owner of keys while another has ready samples; 1: no bound",
        maximum=1.0,
        above=0.0,
    )
    feedback_share: float = variable(
        "OPENCLAW_FEEDBACK_SHARE",
        0.25,
        "most of a batch that one owner's feedback scored, while another owner has ready samples; 1: no bound",
        maximum=1.0,
        above=0.0,
    )
    pace: Literal["batch", "session"] = variable(
        "OPENCLAW_PACE",
        "batch",
        "when a step is due: batch waits for BATCH_SIZE turns of anybody; session also takes one person's turns once a session of "
        "theirs is over or quiet, see pace.md",
    )
    quiet_seconds: float = variable(
        "OPENCLAW_QUIET_SECONDS",
        60.0,
        "a session is quiet, and OPENCLAW_TRAIN_WHEN=idle is met, this many seconds after the last reply",
        above=0.0,
    )
    train_when: str = variable(
        "OPENCLAW_TRAIN_WHEN",
        "always",
        "when training may take place: always, idle (while nobody talks), or hours of the day such as 22:00-06:00",
    )
    practice_passes: int = variable(
        "OPENCLAW_PRACTICE_PASSES", 4, "optimizer steps over one person's practice, each with all of it", minimum=1
    )
    person_refusals: int = variable(
        "OPENCLAW_PERSON_REFUSALS",
        3,
        "one person's batches that the gate refuses in a row after which this person's training pauses",
        minimum=1,
    )
    distill_topk: int = variable(
        "OPENCLAW_DISTILL_TOPK",
        0,
        "number of most likely tokens per position that the teacher scores; 0: only the reply's own tokens",
        minimum=0,
    )
    opd_teacher_lp_max_concurrency: int = variable(
        "OPENCLAW_OPD_TEACHER_LP_MAX_CONCURRENCY", 4, "most turns scored by the teacher at a time", minimum=1
    )
    alert_webhook: str | None = variable(
        "OPENCLAW_ALERT_WEBHOOK",
        None,
        "address that gets a line when training is paused, an update is refused, the disk is nearly full, or an engine died",
        secret=True,
    )
    log_level: str = variable(
        "ROLLOUT_LOG_LEVEL", "INFO", "log level of the runtime", choices=("DEBUG", "INFO", "WARNING", "ERROR")
    )
    debug: bool = variable("OPENCLAW_DEBUG", False, "1: the same as ROLLOUT_LOG_LEVEL=DEBUG")


VARIABLES = RuntimeVariables.variables()
DEBUG_LEVEL = "DEBUG"


def wanted_log_level(environment: Mapping[str, str] = os.environ) -> str:
    """Return the log level that these variables ask for.

    Raises:
        ConfigError: a variable is invalid.
    """
    level, source = RuntimeVariables.declared("log_level").read(environment)
    debug, _ = RuntimeVariables.declared("debug").read(environment)
    return DEBUG_LEVEL if debug and source == "default" else str(level)


def client_key(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the key that clients send to the gateway; None without one.

    Raises:
        ConfigError: the variable's two names have different values.
    """
    return cast(str | None, RuntimeVariables.declared("api_key").read(environment)[0])
