"""The metrics that a run on conversations logs about its steps, beside those of `slime.utils.step_metrics`."""

from __future__ import annotations

from collections.abc import Iterable

from slime.utils.step_metrics import PREFIXES as OF_TRAINING
from slime.utils.step_metrics import TABLES as TRAINING
from slime.utils.step_metrics import Metric, undeclared

CONVERSATIONS = (
    Metric("openclaw/wait_seconds", "seconds", "Wait for a full batch"),
    Metric("openclaw/train_when_seconds", "seconds", "Part of it in which `OPENCLAW_TRAIN_WHEN` forbade a step"),
    Metric("openclaw/of_one_person", "count", "1 if the batch is one person's, by pace or practice"),
    Metric("openclaw/passes", "count", "Optimizer steps over the batch, each with all of it"),
    Metric("openclaw/queue_depth", "count", "Samples that are ready for the next batch"),
    Metric("openclaw/staleness_{statistic}", "updates", "Updates since a sample's oldest token: min, mean, max"),
    Metric("openclaw/dropped_stale", "count", "Samples dropped for `--max-weight-staleness`"),
    Metric("openclaw/corrected_stale", "count", "Samples beyond it that are trained with correction"),
    Metric("openclaw/masked_stale_tokens", "tokens", "Tokens of them without loss"),
    Metric("openclaw/hinted_share", "share", "Samples with a teacher"),
    Metric("openclaw/scored_share", "share", "Samples that came as text from a log"),
    Metric("openclaw/feedback_scored_share", "share", "Samples whose score a person stated"),
    Metric("openclaw/baseline", "reward", "Mean baseline that was subtracted from the rewards"),
    Metric("openclaw/degenerate_share", "share", "Newest turns that were truncated or repeat themselves"),
    Metric("openclaw/owners", "count", "Owners of the samples"),
    Metric("openclaw/largest_owner_share", "share", "Samples of the owner with the most"),
    Metric("openclaw/episodes", "count", "Agents' episodes in the batch"),
    Metric("openclaw/episode_segments", "count", "Samples of episodes"),
    Metric("openclaw/episode_turns", "count", "Turns in these samples"),
    Metric("openclaw/runtime_restarts", "count", "Restarts of the runtime process so far"),
    Metric("openclaw/runtime_frozen", "count", "Of them, those because it gave no answer"),
    Metric("openclaw/turns/{state}", "count", "Turns of the ledger by state"),
    Metric("openclaw/samples/{state}", "count", "Samples of the ledger by state"),
    Metric("openclaw/turn_reasons/{reason}", "count", "Turns without a sample by reason"),
    Metric("openclaw/sample_reasons/{reason}", "count", "Samples that were dropped by reason"),
)
"""Beside the metrics of a rollout."""

GATE = (
    Metric("gate/accepted", "count", "1 if the update may serve, 0 if it was undone"),
    Metric("gate/refused_by_margin", "count", "1 if only the users' opinions spoke against it"),
    Metric("gate/too_few_probes", "count", "1 if the opinions were too few to compare"),
    Metric("gate/probes_liked", "count", "Clusters of liked replies that were compared"),
    Metric("gate/probes_disliked", "count", "Clusters of disliked replies"),
    Metric("gate/margin", "nats/token", "How liked replies moved against disliked ones"),
    Metric("gate/margin_error", "nats/token", "Standard error of the margin"),
    Metric("gate/margin_to_best", "nats/token", "Margin to the best of the last accepted versions"),
    Metric("gate/margin_of_worst_owner", "nats/token", "Margin of the owner with the lowest"),
    Metric("gate/owners_compared", "count", "Owners with enough opinions of their own"),
    Metric("gate/degenerate_serving", "share", "Degenerate greedy replies of the serving version"),
    Metric("gate/degenerate_candidate", "share", "Degenerate greedy replies of the update"),
    Metric("gate/drift", "nats/token", "Mean move of the scores of stored replies"),
    Metric("gate/jump", "nats/token", "Largest fall of a liked reply"),
    Metric("gate/tasks_serving", "share", "Verified tasks that the serving version solves"),
    Metric("gate/tasks_candidate", "share", "Verified tasks that the update solves"),
    Metric("gate/seconds", "seconds", "Time of the decision"),
    Metric("gate/certificate_seconds", "seconds", "Time of the certificate, the push of the update included"),
    Metric("gate/certificate_red", "count", "1 if the certificate is red, so that the update is refused"),
    Metric("gate/canary_seconds", "seconds", "Time of the trial on one engine"),
    Metric("gate/canary_deaths", "count", "Deaths of that engine"),
    Metric("gate/canary_difference", "nats/token", "Mean distance of its logprobs from the trainer's"),
    Metric("gate/canary_degenerate", "share", "Its degenerate greedy replies"),
    Metric("gate/canary_turns", "count", "Live replies that it gave"),
    Metric("gate/canary_live_degenerate", "share", "Of them, degenerate ones"),
    Metric("gate/canary_liked", "share", "Of the judged ones, liked ones"),
    Metric("gate/canary_slowdown", "ratio", "Its seconds per token over those of the serving version"),
)
"""Beside the metrics of a rollout, with a gate."""

TABLES = (
    *TRAINING,
    ("Conversations", "rollout/step", CONVERSATIONS),
    ("The gate", "rollout/step", GATE),
)
PREFIXES = (*OF_TRAINING, "openclaw", "gate")
METRICS = tuple(metric for _, _, metrics in TABLES for metric in metrics)


def undeclared_metrics(names: Iterable[str]) -> list[str]:
    """Return those of ``names`` that a run logs by itself but that no table has."""
    return undeclared(names, PREFIXES, METRICS)
