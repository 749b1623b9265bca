"""Check a method folder: ``python -m openclaw.method check FOLDER``.

The command is part of `openclaw.launch`, which knows folders, profiles and variables. It is named as a path, because this
room must not import that one.
"""

from __future__ import annotations

import sys

from slime.utils.misc import load_function

if __name__ == "__main__":
    sys.exit(load_function("openclaw.launch.method_check.main")())
