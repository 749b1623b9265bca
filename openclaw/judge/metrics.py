"""The judge loop's Prometheus metrics, under the names of the metrics page."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class JudgeMetrics:
    """Registers the judge's metrics in the runtime's registry; owned by the judge worker."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.votes = Counter(
            "openclaw_judge_votes",
            "Votes cast, by judge and value, or why it is none",
            ["judge", "value"],
            registry=registry,
        )
        self.recast = Counter(
            "openclaw_judge_votes_recast", "Votes cast again because too few were valid", ["judge"], registry=registry
        )
        self.judged = Counter(
            "openclaw_judge_turns",
            "Turns judged, by outcome: sample or the reason for none",
            ["outcome"],
            registry=registry,
        )
        self.failures = Counter(
            "openclaw_judge_failures", "Turns that could not be judged and stay pending", ["kind"], registry=registry
        )
        self.teacher_failures = Counter(
            "openclaw_judge_teacher_failures",
            "Hinted turns without usable teacher logprobs",
            ["kind"],
            registry=registry,
        )
        self.teacher_positions = Counter(
            "openclaw_judge_teacher_positions",
            "Positions at which the teacher scored the policy's top K: with the whole reply, or by a request of their own",
            ["settled"],
            registry=registry,
        )
        self.hint_overlap = Histogram(
            "openclaw_judge_hint_overlap",
            "Share of the policy's top K among the likeliest tokens of the teacher with the chosen hint",
            buckets=(0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0),
            registry=registry,
        )
        self.session_samples = Counter(
            "openclaw_judge_session_samples", "Samples given by finished sessions as a whole", registry=registry
        )
        self.session_failures = Counter(
            "openclaw_judge_session_failures",
            "Finished sessions that could not be closed and are tried again, by the error's type",
            ["reason"],
            registry=registry,
        )
        self.agreement = Histogram(
            "openclaw_judge_agreement",
            "Share of the votes that agree with the most frequent one",
            ["judge"],
            buckets=(0.34, 0.5, 0.67, 0.8, 0.99, 1.0),
            registry=registry,
        )
        self.seconds = Histogram("openclaw_judge_seconds", "Seconds to judge a turn", registry=registry)
        self.in_flight = Gauge("openclaw_judge_in_flight", "Turns being judged", registry=registry)
