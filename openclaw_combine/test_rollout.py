"""The command that guides name; the code is in `openclaw.server.collect_check`."""

import sys

from openclaw.server.collect_check import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
