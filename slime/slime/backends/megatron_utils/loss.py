"""The contract's path of `slime.logprobs.packed_logits`."""

from slime.logprobs.packed_logits import get_log_probs_and_entropy, get_responses, get_values

__all__ = ["get_log_probs_and_entropy", "get_responses", "get_values"]
