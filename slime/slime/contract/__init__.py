"""The plugin contract as named clauses, and the programs that check a plugin against them.

``python -m slime.contract FLAGS`` checks every plugin that a launch command's flags name. ``tests/contract/plugins`` does the
same with pytest. Both call :func:`check`, which runs a plugin in stand-in surroundings: no GPU, no Ray, an engine without a
model.
"""

from __future__ import annotations

from slime.contract.check import check
from slime.contract.clauses import CLAUSES, KINDS, ContractViolation

__all__ = ["CLAUSES", "KINDS", "ContractViolation", "check"]
