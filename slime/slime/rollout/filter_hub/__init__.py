"""Built-in filters, and the type that a filter returns."""
