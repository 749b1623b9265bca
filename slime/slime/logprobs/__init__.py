"""Log probabilities of response tokens, from hidden states or logits, over ranks that share vocabulary and sequence."""
