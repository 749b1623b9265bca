"""The rows of a data file, at the path that plugins import."""

from groundwork.data_rows import read_file

__all__ = ["read_file"]
