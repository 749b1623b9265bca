"""The HTTP side of a pool or a router.

* ``app``: routes, keys, bounds of bodies, and errors as answers.
* ``serve``: runs the application until SIGTERM.
* ``options``: options that both commands have.
"""
