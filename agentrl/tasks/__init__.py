"""Tasks that environments offer.

* ``harbor``: the task format, a folder with an instruction, files and a verifier.
* ``toolcall``: generated tasks for calls of tools, and the environment that carries the calls out.
* ``shell``: generated tasks in that format, and the environment that runs them in a sandbox.
"""
