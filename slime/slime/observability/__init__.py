"""Metrics and logging under the import paths of newer plugins."""
