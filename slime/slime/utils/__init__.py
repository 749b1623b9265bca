"""Types, HTTP and other small tools of the core."""
