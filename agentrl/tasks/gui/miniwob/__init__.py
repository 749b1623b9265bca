"""MiniWoB++ (Liu et al. 2018, arXiv:1802.08802): small tasks in web pages, offline.

The pages are those of the package ``miniwob``; the driver is `agentrl.tasks.gui.browser`. `pages` names the families and
their tasks, `episode` starts and judges one, `oracles` solves some of them.
"""
