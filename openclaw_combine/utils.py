"""The import that guides name; the code is in `openclaw.server.inspect_sessions`.

``python -m openclaw_combine.utils FOLDER`` prints a line per session.
"""

import sys

from openclaw.server.inspect_sessions import inspect_sessions, main, session_rows

__all__ = ["inspect_sessions", "session_rows"]

if __name__ == "__main__":
    sys.exit(main())
