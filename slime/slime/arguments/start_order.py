"""In which order the roles of a run start.

Guarantees: roles that share a GPU start one after another, all others at the same time. An engine sizes its cache as
``free now - free before x (1 - fraction)`` (`_profile_available_bytes` in SGLang 0.5.23), so whatever another process takes
meanwhile is missing from the cache. Engines go first, because a trainer takes memory as it needs it and measures nothing.
:func:`start_order` is what a run does and what a dry run prints. Imports no Ray.
"""

from __future__ import annotations

from slime.arguments.placement import Placement

ENGINE_ROLES = {"policy": "rollout", "prm": "judge"}
"""Names of the engines' roles in a placement."""


def start_order(placement: Placement) -> tuple[tuple[str, ...], ...]:
    """Return the stages of the start, each with the roles that start at the same time.

    A stage begins when every role of the stage before is up. Roles without GPUs of this run are left out.
    """
    gpus = {
        "rollout": placement.rollout,
        "judge": placement.judge,
        "actor": placement.actor,
        "critic": placement.critic,
    }
    stages: dict[str, int] = {}
    for role, own in gpus.items():
        if own:
            sharing = [stage for other, stage in stages.items() if {*own} & {*gpus[other]}]
            stages[role] = max(sharing, default=-1) + 1
    number = max(stages.values(), default=-1) + 1
    return tuple(tuple(role for role in gpus if stages.get(role) == stage) for stage in range(number))


def stage_of(placement: Placement, role: str) -> int:
    """Return the stage in which ``role`` starts; 0 for one whose GPUs are not this run's (external engines)."""
    return next((number for number, roles in enumerate(start_order(placement)) if role in roles), 0)


def trainer_waits(placement: Placement) -> bool:
    """Whether actor and critic start when all engines are up."""
    return any(stage_of(placement, role) for role in ("actor", "critic"))


def start_lines(placement: Placement) -> list[str]:
    """Return the order for people, a line per stage: ``1. rollout + judge``."""
    return [f"{number}. {' + '.join(roles)}" for number, roles in enumerate(start_order(placement), start=1)]
