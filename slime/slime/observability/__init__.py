"""Names of metrics and logging under the paths that newer plugins import them from."""
