"""The contract of plugins, as clauses with names, and programs that check a plugin against them.

``python -m slime.contract FLAGS`` checks every plugin that the flags of a launch command name; ``tests/contract/plugins`` does the
same as tests. Both call :func:`check`. A plugin is run in stand-in surroundings: no GPU, no Ray, an engine without a model.
"""

from __future__ import annotations

from slime.contract.check import check
from slime.contract.clauses import CLAUSES, KINDS, ContractViolation

__all__ = ["CLAUSES", "KINDS", "ContractViolation", "check"]
