"""The launcher: combines variables, profile and flags into one validated plan, and starts it.

Guarantees: an invalid plan fails before Ray or an engine starts, with the line to change. May import slime's arguments,
placement and start order; of openclaw, the config and the losses that training refuses.
"""
