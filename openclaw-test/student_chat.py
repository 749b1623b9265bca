"""The simulated student: no bold text, no numbered lists, no boxes. `python openclaw-test/student_chat.py --base-url URL`."""

from __future__ import annotations

import sys

from chat import main
from simulated_users.reading import find_user

if __name__ == "__main__":
    sys.exit(main(find_user("student"), "student_chat.py"))
