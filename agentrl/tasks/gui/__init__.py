"""Agents that see a screen and act with mouse and keyboard: ``computer_use`` in a real browser, and in OSWorld's machines.

* `actions`, `coordinates`, `keys`: what a call of the tool means. `tool` describes it to the policy.
* `browser`: Chromium in a sandbox. `inputs` carries actions out in its page; `dom` reads the page as text.
* `miniwob`: tasks of MiniWoB++. `osworld`: tasks in OSWorld's layout.
"""
