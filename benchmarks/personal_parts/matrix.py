"""Which runs the personalisation benchmark has: methods, users, forms, seeds and ablations.

Guarantees: a run's name says all that distinguishes it from the others of a folder, except the sizes, which its record holds. The base
model does not change, so one run per seed with all users stands for both forms.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

BASE, JOINT, SEPARATE = "base", "joint", "separate"
FORMS = (JOINT, SEPARATE)
METHODS = (BASE, "rl", "opd", "combine", "hybrid", "sdpo")
TITLES = {"rl": "Binary RL", "opd": "OPD", "combine": "Combine", "hybrid": "Hybrid", "sdpo": "SDPO", BASE: "base"}
TITLES |= {
    "weights-today": "Binary RL",
    "lessons": "lessons alone",
    "weights": "practice alone",
    "both": "lessons and practice",
    "gated": "both, behind the gate",
    "adapters": "both, an adapter each",
    "replay": "practice with replay",
    "rubric": "practice with rubric groups",
}


@dataclass(frozen=True)
class Arm:
    """One setting of an ablation: a method with other variables or flags.

    Attributes:
        name: of the setting, for file names and tables.
        method: which is changed.
        variables: environment variables of the run.
        flags: of the launcher.
    """

    name: str
    method: str
    variables: tuple[tuple[str, str], ...] = ()
    flags: tuple[str, ...] = ()


def _of_variable(prefix: str, method: str, variable: str, values: Sequence[str]) -> tuple[Arm, ...]:
    return tuple(Arm(f"{prefix}-{value.replace('_', '-')}", method, ((variable, value),)) for value in values)


def _weights(rl: str, opd: str) -> Arm:
    variables = (("OPENCLAW_COMBINE_W_RL", rl), ("OPENCLAW_COMBINE_W_OPD", opd))
    return Arm(f"w-{rl}-{opd}", "combine", variables)


ABLATIONS: dict[str, tuple[Arm, ...]] = {
    "k": _of_variable("k", "hybrid", "OPENCLAW_HYBRID_TOPK", ("2", "4", "8", "20")),
    "w": (_weights("1", "1"), _weights("0.5", "1"), _weights("1", "0.5")),
    "hint": _of_variable(
        "hint", "hybrid", "OPENCLAW_HYBRID_HINT_CHOICE", ("sequence_optimal", "token_optimal", "shortest")
    ),
    "votes": _of_variable("votes", "combine", "PRM_M", ("1", "3", "5")),
    "staleness": tuple(
        Arm(f"pushed-every-{steps}", "combine", flags=("--update-weights-interval", steps)) for steps in ("1", "4", "8")
    ),
    "clip": tuple(Arm(f"clip-{bound}", "combine", flags=("--opd-clip", bound)) for bound in ("0.3", "0.5", "1")),
    "gate": _of_variable("gate", "combine", "GATE", ("off", "on")),
}
PERSONAL_FLAGS = ("--key-each", "--score-counted")
_PRACTICE = (("OPENCLAW_LESSONS", "auto"), ("OPENCLAW_PRACTICE", "trial"))
_ALONE = (*PERSONAL_FLAGS, "--decline-lessons")
PERSONAL_ARMS: dict[str, Arm] = {
    arm.name: arm
    for arm in (
        Arm("weights-today", "rl", (), PERSONAL_FLAGS),
        Arm("lessons", "rl", (("OPENCLAW_LESSONS", "auto"),), PERSONAL_FLAGS),
        Arm("weights", "personal", _PRACTICE, _ALONE),
        Arm("both", "personal", (("OPENCLAW_LESSONS", "auto"),), PERSONAL_FLAGS),
        Arm(
            "gated",
            "personal",
            (
                *(("OPENCLAW_LESSONS", "auto"), ("GATE", "on")),
                *(("OPENCLAW_GATE_SHARE", "0.3"), ("OPENCLAW_GATE_FEWEST", "2")),
            ),
            PERSONAL_FLAGS,
        ),
        Arm(
            "adapters",
            "personal",
            (("OPENCLAW_LESSONS", "auto"), ("ADAPTERS", "per-owner"), ("USE_LORA", "1")),
            PERSONAL_FLAGS,
        ),
        Arm("replay", "personal", (*_PRACTICE, ("OPENCLAW_PRACTICE_REPLAY", "14")), (*_ALONE, "--use-tis")),
        Arm("rubric", "personal", (*_PRACTICE, ("OPENCLAW_PRACTICE_RUBRIC", "1")), _ALONE),
    )
}
"""What a person's first complaints change: Binary RL alone, lessons in the prompt alone, practice while requests decline
lessons, and both. ``gated`` is both with the gate, which keeps three turns of ten as probes and compares two of each opinion, because
a person has few. ``adapters`` is both with an adapter for each person, so users of one server share none of their weights. ``replay``
and ``rubric`` are practice with an option more. Each user has a key of its own."""
UNGATED = {"GATE": "off"}
"""Variables of every run, unless its arm sets them: the gate keeps turns out of training, and is compared in its own ablation."""


@dataclass(frozen=True)
class Cell:
    """One run.

    Attributes:
        method: or `BASE`.
        users: names, in the order in which they talk.
        seed: of the run.
        files: what ``--users`` of the run gets: a name or a file for each user.
        arm: of an ablation, if it is one.
    """

    method: str
    users: tuple[str, ...]
    seed: int
    files: tuple[str, ...] = field(compare=False)
    arm: Arm | None = None

    @property
    def form(self) -> str:
        """Return whether users share the model; a single user's model is separate."""
        return JOINT if len(self.users) > 1 else SEPARATE

    @property
    def variables(self) -> Mapping[str, str]:
        """Return the environment variables of the run."""
        return UNGATED | dict(self.arm.variables if self.arm else ())

    @property
    def name(self) -> str:
        """Return the name of its record, without the ending."""
        parts = [self.method, "+".join(self.users), f"seed{self.seed}"]
        return "-".join([*parts, *([self.arm.name] if self.arm else [])])


def cells(
    methods: Sequence[str],
    users: dict[str, str],
    forms: Collection[str],
    seeds: Sequence[int],
    arms: Sequence[Arm],
    personal: Sequence[Arm] = (),
) -> Iterator[Cell]:
    """Yield the runs, seed by seed, so that an interrupted benchmark has whole seeds.

    Args:
        methods: their names.
        users: name of each user, with what ``--users`` gets.
        forms: of `FORMS`; with one user, both are the same run.
        seeds: of the runs.
        arms: settings of ablations; they run in the first form.
        personal: of `PERSONAL_ARMS`; they run in all forms.
    """
    everybody = tuple(users)
    groups: list[tuple[str, ...]] = [(name,) for name in everybody] if SEPARATE in forms else []
    if JOINT in forms and (len(everybody) > 1 or not groups):
        groups.insert(0, everybody)
    for seed in seeds:
        for method in methods:
            for group in [everybody] if method == BASE else groups:
                yield Cell(method, group, seed, tuple(users[name] for name in group))
        for arm in personal:
            for group in groups:
                yield Cell(arm.method, group, seed, tuple(users[name] for name in group), arm)
        for arm in arms:
            yield Cell(arm.method, groups[0], seed, tuple(users[name] for name in groups[0]), arm)
