"""The import that guides name; the code is in `openclaw.server.inspect_sessions`."""

from openclaw.server.inspect_sessions import inspect_sessions, session_rows

__all__ = ["inspect_sessions", "session_rows"]
