"""Clients of environments.

* ``episode``: one episode, with its lease kept alive. Works with any `agentrl.service.LeaseService`.
* ``http``: the service behind a URL.
* ``in_process``: a pool in this process, with the same behaviour.
"""
