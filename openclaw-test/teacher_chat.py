"""The simulated teacher: praise in every comment. `python openclaw-test/teacher_chat.py --base-url URL`."""

from __future__ import annotations

import sys

from chat import main
from personas import TEACHER

if __name__ == "__main__":
    sys.exit(main(TEACHER, "teacher_chat.py"))
