"""Advantage estimators and losses, one idea per file. Nothing here knows a method, a model or a process group."""
