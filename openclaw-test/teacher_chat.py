"""The simulated teacher: praise in every comment. `python openclaw-test/teacher_chat.py --base-url URL`."""

from __future__ import annotations

import sys

from chat import main
from simulated_users.reading import find_user

if __name__ == "__main__":
    sys.exit(main(find_user("teacher"), "teacher_chat.py"))
