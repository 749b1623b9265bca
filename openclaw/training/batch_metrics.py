"""What the metrics say about a batch, and about the turns and samples that are not in it.

Guarantees: read-only.
"""

from __future__ import annotations

from collections import Counter

from openclaw.ledger.records import BASELINE, SCORED, WEIGHT
from openclaw.ledger.store import Ledger
from openclaw.owners import owner_of, root
from slime.utils.types import Sample

MASKED = "masked_stale"
"""Entry of a sample's metadata: how many of its tokens are not trained because their weights are too old."""
DEGENERATE = ("truncated", "repetition")
"""Reasons of `openclaw.judge.hygiene` that show a policy falling apart; such replies are in no batch."""


def batch_metrics(ledger: Ledger, samples: list[Sample], bound: int | None) -> dict[str, float]:
    """Return a batch's metrics: staleness, terms, owners, and the ledger's counts by state and reason.

    ``bound`` is ``--max-weight-staleness`` if samples beyond it are trained with correction, otherwise None.
    """
    counts = ledger.views.counts()
    stale = [sample.metadata["staleness"] for sample in samples]
    hinted = [s for s in samples if s.teacher_log_probs is not None or s.teacher_topk_indices is not None]
    owners = Counter(root(owner_of(sample.session_id or "")) for sample in samples)
    of_episodes = [sample for sample in samples if "episode" in sample.metadata]
    metrics = {
        "openclaw/staleness_min": float(min(stale)),
        "openclaw/staleness_mean": sum(stale) / len(stale),
        "openclaw/staleness_max": float(max(stale)),
        "openclaw/corrected_stale": 0.0 if bound is None else float(sum(age > bound for age in stale)),
        "openclaw/masked_stale_tokens": float(sum(sample.metadata.get(MASKED, 0) for sample in samples)),
        "openclaw/hinted_share": len(hinted) / len(samples),
        "openclaw/scored_share": sum(SCORED in sample.metadata for sample in samples) / len(samples),
        "openclaw/feedback_scored_share": sum(WEIGHT in sample.metadata for sample in samples) / len(samples),
        "openclaw/baseline": sum(sample.metadata.get(BASELINE, 0.0) for sample in samples) / len(samples),
        "openclaw/degenerate_share": ledger.views.degenerate_share(DEGENERATE),
        "openclaw/owners": float(len(owners)),
        "openclaw/largest_owner_share": max(owners.values()) / len(samples),
        "openclaw/episodes": float(len({sample.metadata["episode"] for sample in of_episodes})),
        "openclaw/episode_segments": float(len(of_episodes)),
        "openclaw/episode_turns": float(sum(len(sample.metadata["turns"]) for sample in of_episodes)),
        "openclaw/queue_depth": float(counts["samples"].get("ready", 0)),
    }
    for group in ("turns", "samples", "turn_reasons", "sample_reasons"):
        metrics |= {f"openclaw/{group}/{name}": float(count) for name, count in counts[group].items()}
    return metrics
