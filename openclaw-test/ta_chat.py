"""The simulated TA: feedback of at least 100 tokens. `python openclaw-test/ta_chat.py --base-url URL`."""

from __future__ import annotations

import sys

from chat import main
from simulated_users.reading import find_user

if __name__ == "__main__":
    sys.exit(main(find_user("ta"), "ta_chat.py"))
