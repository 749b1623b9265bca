"""A desktop by pyautogui: one program on a display of its own, which Xvfb has in a sandbox.

`screen` is the computer, `windows` has the generated tasks, `oracles` solve them. The programs inside are in
`agentrl.tasks.gui.inside`.
"""
