"""Tasks that are solved by calling tools, and the environment in which an agent solves them.

* ``environment``: the environment that a pool lends out.
* ``settings``, ``config``: its variables; the tools of ``TOOLS_CONFIG``.
* ``toolbox``, ``tools``: checks a call and carries it out; one module per kind of tool.
* ``grading``: reads an answer and compares it; no program of an agent's has a part in it.
* ``generate``, ``rows``: a task from its name; a task from a row of a data set.
* ``datasets``, ``convert``: rows of published data sets, and the commands that convert them.
* ``families``, ``draft``: what the generated tasks are.
* ``prompts``: what an agent is told besides the task.
* ``conversations``: how an oracle solves a task, as messages to start from.
"""
