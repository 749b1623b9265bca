"""Measures which test notices that a flag has no effect: ``python -m tests.flag_mutations``. Not part of CI.

`ineffective` makes the product ignore one flag, `worker` runs tests under it, `jobs` says which tests, and `__main__`
drives the workers and keeps what they found.
"""
