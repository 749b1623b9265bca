"""``python -m openclaw.server``: serve a model and record its conversations, without training.

Guarantees: engine and runtime process end with the command. The top room of openclaw: may import every room below it,
and the engines and process tools of slime.
"""
