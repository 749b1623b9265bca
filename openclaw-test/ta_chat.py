"""The simulated TA: feedback of at least 100 tokens. `python openclaw-test/ta_chat.py --base-url URL`."""

from __future__ import annotations

import sys

from chat import main
from personas import TA

if __name__ == "__main__":
    sys.exit(main(TA, "ta_chat.py"))
