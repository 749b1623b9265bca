"""Agents that see a screen and act with mouse and keyboard: ``computer_use`` in a browser, on a desktop, in OSWorld's machines.

* `actions`, `coordinates`, `keys`: what a call of the tool means. `tool` describes it to the policy.
* `browser`: Chromium in a sandbox. `computer` carries actions out in its page; `dom` reads the page as text.
* `orders`, `inside`: the same by pyautogui, in a sandbox or a machine.
* `miniwob`: tasks of MiniWoB++. `desktop`: windows on a display in a sandbox. `osworld`: tasks in OSWorld's layout.
"""
