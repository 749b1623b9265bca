"""Flags of ``sglang-router`` under the prefix ``--router-``: the run sets up its router itself, so each is refused.

Guarantee: every flag that the router has is here with what to do instead.
"""

from __future__ import annotations

_OWN_ROUTER = "is not offered: a run sets up its router itself; remove it"
_POLICY = "is not offered: a conversation stays on its engine and new ones go to the least busy; remove it"
_SPLIT = "is not offered: prefill and decode run in one engine; remove it"
_DISCOVERY = "is not offered; name engines that run already with --rollout-external-engine-addrs"
_LIMITS = "is not offered: the router lets every request through; bound them with --sglang-server-concurrency"
_HEALTH = "is not offered: the run watches its engines itself; use --rollout-health-check-interval N"
_LOOPBACK = "is not offered: the router listens on loopback only; remove it"
_ENGINE = "is not offered: the router hands on token ids; give the engines --sglang-"
_STORE = "is not offered: the router keeps no history; remove it"

_FAMILIES: dict[str, str] = {
    "policy balance-abs-threshold balance-rel-threshold cache-threshold assignment-mode max-tree-size max-idle-secs": _POLICY,
    "eviction-interval-secs bucket-adjust-interval-secs": _POLICY,
    "prefill-policy decode-policy pd-disaggregation prefill decode mini-lb prefill-selector decode-selector": _SPLIT,
    "service-discovery service-discovery-port service-discovery-namespace selector": _DISCOVERY,
    "max-concurrent-requests queue-size queue-timeout-secs rate-limit-tokens-per-second": _LIMITS,
    """health-failure-threshold health-success-threshold health-check-timeout-secs health-check-interval-secs
    health-check-endpoint disable-health-check cb-failure-threshold cb-success-threshold cb-timeout-duration-secs
    cb-window-duration-secs disable-circuit-breaker""": _HEALTH,
    """client-cert-path client-key-path ca-cert-paths tls-cert-path tls-key-path api-key control-plane-api-keys
    control-plane-audit-enabled jwt-issuer jwt-audience jwt-jwks-uri jwt-role-mapping cors-allowed-origins""": _LOOPBACK,
    """backend history-backend oracle-wallet-path oracle-tns-alias oracle-connect-descriptor oracle-username
    oracle-password oracle-pool-min oracle-pool-max oracle-pool-timeout-secs postgres-db-url postgres-pool-max redis-url
    redis-pool-max redis-retention-days mcp-config-path""": _STORE,
    """max-payload-size dp-aware enable-igw worker-startup-timeout-secs worker-startup-check-interval prometheus-port
    prometheus-host prometheus-duration-buckets request-id-headers shutdown-grace-period-secs retry-max-retries
    retry-initial-backoff-ms retry-max-backoff-ms retry-backoff-multiplier retry-jitter-factor disable-retries
    tokenizer-cache-enable-l0 tokenizer-cache-l0-max-entries tokenizer-cache-enable-l1 tokenizer-cache-l1-max-memory
    enable-trace otlp-traces-endpoint model-path tokenizer-path""": _OWN_ROUTER,
    "log-dir log-level": "is not offered: the router logs warnings to RUN_DIR/logs/router-policy.log; remove it",
    "request-timeout-secs": "is not offered; use --sglang-router-request-timeout-secs",
} | {name: _ENGINE + name for name in ("reasoning-parser", "tool-call-parser", "chat-template")}

REFUSED_ROUTER: dict[str, str] = {f"router-{name}": why for names, why in _FAMILIES.items() for name in names.split()}
