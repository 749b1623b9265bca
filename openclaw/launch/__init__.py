"""From a launch script's two lines to a running trainer: variables, profile and flags become one validated plan.

Guarantees: a plan that cannot work fails before Ray or an engine starts, with the line to change. May import slime's
arguments, placement and start order, and of openclaw the config and what training refuses.
"""
