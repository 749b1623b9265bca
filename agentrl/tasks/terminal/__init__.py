"""Tasks for agents in a terminal: folders of others, and shells that live on between calls.

* ``environment``: the environment that a pool lends out; ``tools``: what the agent may call.
* ``sessions``: the host's half of persistent shells; ``session_program``: the half that runs in the sandbox.
* ``source``: which tasks, by the variables; ``tbench``: folders of terminal-bench; ``images``: images that folders need.
* ``prompts``: tasks as rows for training; ``python -m agentrl.tasks.terminal`` writes and checks them.
"""
