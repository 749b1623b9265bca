"""The type of ``args``: every flag of the training core as a typed attribute with its one default.

Guarantee: the classes are written by `slime.arguments.generate` from the declared flags, and a test compares them. This
package imports nothing of the project, so that every other package may.
"""

from __future__ import annotations

from slime.args.arguments import Arguments
from slime.args.base import READ, ConfigView, FlatArguments, MissingArgumentError, required

__all__ = ["READ", "Arguments", "ConfigView", "FlatArguments", "MissingArgumentError", "required"]
