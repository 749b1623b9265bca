"""Tasks that environments offer.

* ``harbor``: the task format, a folder with an instruction, files and a verifier.
* ``shell``: generated tasks in that format, and the environment that runs them in a sandbox.
"""
