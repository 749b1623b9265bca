"""Which reward each reply gets credit for: baselines of people's rewards, and the samples of agents' episodes.

The ledger stores and hands out rows; here their rewards are compared, by the functions of `slime.rollout.rewards`.
"""
