"""From prompts or live traffic to samples, and from samples to training data."""
