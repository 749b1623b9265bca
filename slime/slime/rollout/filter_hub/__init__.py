"""Filters that come with the core, and what a filter returns."""
