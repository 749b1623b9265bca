"""The parts of `personal_run.py`: sizes, the talking users, and what is recorded of one run."""
