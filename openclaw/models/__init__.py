"""Hugging Face checkpoints on this machine: where the scripts look for them, whether one is whole, how to download one.

Guarantee: a folder that this room creates is a whole checkpoint or does not exist. Imports nothing of the project except
`openclaw.exceptions`.
"""
