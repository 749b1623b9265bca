"""Log probabilities of response tokens, from hidden states or logits, under tensor and context parallelism."""
