"""Type and check the runtime process's environment before anything starts.

Guarantees: each variable is declared once (`runtime_variables`) and read once (`runtime`). An invalid value is a
`ConfigError` that says what to type. Imports only the standard library and `openclaw.exceptions`.
"""
