"""What runs inside a sandbox: the standard library of Python 3.8, and no other part of agentrl.

* ``supervisor``: the first process, with its commands, doors and files.
* ``kernel``: process trees and properties.
* ``wire``: frames between host and sandbox, and the cap on output.
"""
