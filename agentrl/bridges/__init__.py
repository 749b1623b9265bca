"""Environments of other projects, each behind a process of its own.

* ``verifiers``: those of the package `verifiers`; ``verifiers_worker`` is the program that runs in that package's own
  virtual environment, and imports nothing of ours.
* ``lines``: a program that is asked and answers in lines of JSON.
"""
