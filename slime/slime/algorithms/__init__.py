"""Advantage estimators and losses, one idea per file, independent of methods, models and process groups."""
