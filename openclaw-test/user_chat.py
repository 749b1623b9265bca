"""Any simulated user, built in or of a file of yours. `python openclaw-test/user_chat.py --user captain --base-url URL`."""

from __future__ import annotations

import sys

from chat import main

if __name__ == "__main__":
    sys.exit(main(None, "user_chat.py"))
