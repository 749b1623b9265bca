"""The environment of the runtime process, typed and checked before anything starts.

Guarantees: a variable is declared once (`runtime_variables`), read once (`runtime`), and an unusable value is a
`ConfigError` that says what to type. Imports only the standard library and `openclaw.exceptions`.
"""
