"""The HTTP side of a pool or a router.

* ``serve``: runs the application until SIGTERM.
* ``options``: options that both commands have.
* ``app``: the routes.
* ``door``: who may enter: key, host, content type.
* ``bodies``: reads a request within bounds.
* ``errors``: errors as answers.
"""
