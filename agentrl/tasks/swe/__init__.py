"""Software engineering tasks: a repository with a bug, an issue in words, and hidden tests.

* ``instance``: a task, with what the agent sees and what only the grader knows.
* ``families``, ``draft``, ``generate``: small repositories with real bugs.
* ``tree``, ``protected``, ``grade``: what the agent changed, which changes count, and the verdict in a fresh sandbox.
* ``runner``, ``logs``, ``resolved``: run the tests, read their log, and say whether the issue is resolved.
"""
