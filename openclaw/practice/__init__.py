"""Practice: what moves a person's lessons into the weights.

`openclaw.practice.plan` decides what is practised, and when it ends; `openclaw.practice.loop` does it.
"""
