"""Python imports this at its start when the folder is on ``PYTHONPATH``: a child process ignores its parent's flag."""

from __future__ import annotations

import os

if "FLAG_MUTATION" in os.environ:
    import importlib.util
    import sys
    from pathlib import Path

    _folder = Path(__file__).resolve().parents[1]
    _spec = importlib.util.spec_from_file_location("flag_mutations_ineffective", _folder / "ineffective.py")
    if _spec is not None and _spec.loader is not None:
        _module = importlib.util.module_from_spec(_spec)
        sys.modules[_spec.name] = _module
        _spec.loader.exec_module(_module)
        _module.follow_environment()
