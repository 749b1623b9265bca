"""``python -m openclaw.server``: serve a model and record its conversations, without training."""
