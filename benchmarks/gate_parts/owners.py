"""Two people's opinions about one update: is one harmed for the other, and does one of them stop what helps the other?

A quiet person has a sixteenth of the judged turns, a loud one the rest. An update changes the scores of the quiet one's replies for
better or worse, by `EFFECT` nats per token in the margin and with `NOISE` in each score, ten times what an update of the tiny model shows. The loud one has named `NAMES` sessions
that a draw without a secret takes, and says there the contrary of what the quiet one says; its other turns do not mind the update.
The draw, the choice of probes and the decision are the product's.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from openclaw.config.runtime_variables import GateVariables
from openclaw.gate.decision import Evidence, Scored, decide_on
from openclaw.ledger.probes import Candidate, choose_probes, drawn, in_turn, part_of, reservoir_order
from openclaw.owners import stored_id

TURNS, SIXTEENTH, NAMES = 1024, 16, 64
EFFECT, NOISE = 0.05, 0.02
QUIET, LOUD = "alice", "mallory"
KNOWN = b""
"""The key of a draw that everybody can repeat."""


@dataclass(frozen=True)
class Opinion:
    """A judged turn; ``sign``: how the update moves the margin of its owner's opinions, -1, 0 or 1."""

    candidate: Candidate
    sign: int


def history(rng: random.Random, key: bytes, share: float, *, contrary: str) -> list[Opinion]:
    """Return the judged turns of both people.

    Args:
        rng: of everything random.
        key: of the draw of probes.
        share: of the turns that are probes.
        contrary: where the loud one contradicts: in the ``named`` sessions, or in ``all``.
    """
    found: list[Opinion] = []
    salt, tried, named = rng.getrandbits(32), 0, 0
    for number in range(TURNS):
        owner = LOUD if number % SIXTEENTH else QUIET
        chooses = contrary == "named" and owner == LOUD and named < NAMES
        while True:
            session = stored_id(owner, f"s{salt}-{tried}")
            tried += 1
            if not chooses or drawn(part_of(session, session, 0), share, KNOWN):
                break
        named += chooses
        contradicts = owner == LOUD and (contrary == "all" or chooses)
        part = part_of(session, session, 0)
        candidate = Candidate(
            session, number, part, owner, rng.random() < 0.5, contradicts, not drawn(part, share, key), 100
        )
        found.append(Opinion(candidate, 1 if owner == QUIET else -contradicts))
    return found


def decides(rng: random.Random, opinions: list[Opinion], effect: float, bounds: GateVariables) -> bool:
    """Return whether an update passes that moves the quiet one's margin by ``effect``."""
    order = sorted(opinions, key=lambda each: (each.candidate.trained, reservoir_order(each.candidate.number)))
    candidates = list(in_turn([each.candidate for each in order], lambda each: each.owner))
    signs = {each.candidate.turn_id: each.sign for each in opinions}
    scored = [
        Scored(
            turn_id=each.turn_id,
            part=each.part,
            liked=each.liked,
            stated=each.stated,
            serving=-1.0,
            candidate=-1.0 + signs[each.turn_id] * effect / (2 if each.liked else -2) + rng.gauss(0, NOISE),
            owner=each.owner,
        )
        for each in choose_probes(candidates, bounds.gate_probes, bounds.gate_tokens)
    ]
    return decide_on(Evidence(scored), bounds).accepted


def figures(seeds: int, updates: int = 200) -> dict[str, dict[str, float]]:
    """Return the shares of helpful updates refused and of harmful ones passed, by case."""
    bounds = GateVariables()
    cases = {
        "named_sessions_and_a_known_draw": ("named", True),
        "named_sessions": ("named", False),
        "contrary_in_all": ("all", False),
    }
    found: dict[str, dict[str, float]] = {}
    for name, (contrary, known) in cases.items():
        helpful = harmful = 0
        for seed in range(seeds):
            rng = random.Random(seed)
            key = KNOWN if known else rng.randbytes(32)
            turns = history(rng, key, bounds.gate_share, contrary=contrary)
            for _ in range(updates // seeds):
                helpful += not decides(rng, turns, EFFECT, bounds)
                harmful += decides(rng, turns, -EFFECT, bounds)
        total = updates // seeds * seeds
        found[name] = {"updates": total, "helpful_refused": helpful / total, "harmful_passed": harmful / total}
    return found
