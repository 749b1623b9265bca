"""Advantage estimators and losses, independent of methods, models and process groups."""
