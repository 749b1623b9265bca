"""What a learning method implements, its loading by name, and its check on canned turns.

Guarantees: stateless; imports neither torch nor Ray. ``python -m openclaw.method check FOLDER`` checks a method folder.
"""

from __future__ import annotations

from openclaw.method.interface import HintChoice, JudgePlan, Method, SampleDecision, SessionPlan, TeacherContext
from openclaw.method.loading import load_method, maker, method_config, trains_rewards

__all__ = [
    "HintChoice",
    "JudgePlan",
    "Method",
    "SampleDecision",
    "SessionPlan",
    "TeacherContext",
    "load_method",
    "maker",
    "method_config",
    "trains_rewards",
]
