"""What a machine has, whether the CUDA environment can work on it, and which launch scripts it can run.

Guarantees: standard library only and no need for ``.venv``, so set-up can ask before it installs; runs on Python 3.8 and newer,
so any system Python can report that 3.11 is missing. Nothing here changes the machine.
"""
