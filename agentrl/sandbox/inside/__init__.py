"""What runs inside a sandbox: the standard library of Python 3.8, and no other part of agentrl.

* ``supervisor``: the first process.
* ``commands``: how a command starts, and who looks after what it leaves.
* ``forwarder``: from a door's port to its socket.
* ``files``: writing and reading.
* ``kernel``: process trees and properties.
* ``wire``: frames between host and sandbox, and the cap on output.
"""
