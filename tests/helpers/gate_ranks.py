"""What a rank does in the tests of the gate before a push; at module level, so that new processes can import it."""

from __future__ import annotations

import random
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lab.testkit import trainer
from slime.arguments import placement
from slime.backends.trainer.host_memory import states_of
from slime.ray.trainer import merged
from slime.utils.probes import Answer, Probe
from tests.helpers.megatron_ranks import megatron_args

BEFORE, REFUSED, AFTER = 0, 1, 2
"""The rollouts of a run that refuses one."""


def probes(count: int = 7, vocab: int = 600) -> list[Probe]:
    """Return probes of different lengths: most with a stored reply, some with a greedy one, one with neither."""
    rng = random.Random(3)

    def ids(length: int) -> list[int]:
        return [rng.randrange(3, vocab) for _ in range(length)]

    some = [Probe(ids(rng.randint(1, 12)), ids(rng.randint(1, 9)), 6 if n % 3 == 0 else 0) for n in range(count)]
    return [*some, Probe(ids(5), (), 4), Probe(ids(2))]


def make_actor(changes: dict[str, Any], model: str, rank: int, world_size: int, place: str) -> tuple[Any, Any]:
    """Return the arguments and a ready actor of the case's back end."""
    megatron = changes.get("train_backend") == "megatron"
    args = megatron_args(model, **changes) if megatron else trainer.trainer_args(model, **changes)
    if megatron:
        from slime.backends.megatron_utils.backend import MegatronTrainActor as Actor
    else:
        from slime.backends.fsdp_utils.backend import FSDPTrainActor as Actor
    actor = Actor(world_size, rank, "127.0.0.1", trainer.meeting_port(rank, place))
    actor.init(args)
    return args, actor


def state_of(actor: Any) -> dict[str, Any]:
    """Return copies of everything that a step may change on this rank."""
    changing = actor.backend.changing()
    tensors = [*changing.weights, *states_of(changing.optimizers), *changing.others]
    local = [getattr(tensor, "_local_tensor", tensor).detach().clone() for tensor in tensors]
    settings = [  # Megatron's loader adds a step to the groups, which torch's AdamW does not read
        {name: value for name, value in group.items() if name not in ("params", "step")}
        for optimizer in changing.optimizers
        for group in optimizer.param_groups
    ]
    return {
        "tensors": local,
        "steps": actor.backend.schedule.steps,
        "random": torch.get_rng_state(),
        "groups": settings,
    }


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two states are equal bit for bit."""
    tensors = [*zip(one["tensors"], other["tensors"], strict=True), (one["random"], other["random"])]
    plain = one["steps"] == other["steps"] and repr(one["groups"]) == repr(other["groups"])
    return plain and all(torch.equal(a, b) for a, b in tensors)


class Pushes:
    """In place of the engines: what a push would bring them."""

    def __init__(self) -> None:
        self.weights: dict[str, Tensor] = {}
        self.version = ""

    def push(self, weights: Any, version: str) -> None:
        self.weights, self.version = {name: value.clone() for name, value in weights()}, version

    def close(self) -> None:
        """Nothing is open."""


def refuse_one(rank: int, world_size: int, cases: list[dict[str, Any]], model: str, out: str) -> None:
    """For each case: a run that refuses a batch ends with the bits of one that never saw it. Write the probes' answers."""
    warnings.filterwarnings("ignore")
    results: list[dict[str, Any]] = []
    for number, changes in enumerate(cases):
        ends = []
        for refuses in (True, False):
            args, actor = make_actor(changes, model, rank, world_size, f"{out}.{number}.{refuses}")
            actor._pushes = pushes = Pushes()
            copies = placement.data_parallel_size(args, world_size)
            place = placement.data_parallel_rank(args, rank, world_size)

            def train(
                seed: int, actor: Any = actor, args: Any = args, copies: int = copies, place: int = place
            ) -> None:
                actor.train(seed, trainer.shards(args, trainer.train_data(seed=seed), copies)[place])

            train(BEFORE)
            actor.update_weights()
            saved = state_of(actor)
            if args.save:
                actor.save(BEFORE)
                actor.publish(BEFORE)
            if refuses:
                results.append(_refuse(actor, pushes, lambda: train(REFUSED)))
            train(AFTER)
            actor.update_weights()
            assert pushes.version == "2", pushes.version
            ends.append(state_of(actor) | {"pushed": pushes.weights})
            if args.save:
                actor.restore(BEFORE + 1)
                assert same(saved, state_of(actor)), "a checkpoint brings everything back"
                assert actor.versions() == ("2", "3"), "versions only rise"
            actor.shutdown()
        assert same(*ends), changes
        assert all(torch.equal(ends[0]["pushed"][name], value) for name, value in ends[1]["pushed"].items())
    if rank == 0:
        torch.save(results, out)


def _refuse(actor: Any, pushes: Pushes, train: Any) -> dict[str, Any]:
    """Take steps, ask both versions, push as an engine that restarts needs it, and undo; return the answers and weights."""
    served = {name: value.clone() for name, value in actor.backend.weights()}
    before = state_of(actor)
    actor.take_snapshot()
    assert actor.versions() == ("1", "1")
    train()
    assert actor.versions() == ("1", "2")
    after = state_of(actor)
    assert not same(before, after)
    candidate = {name: value.clone() for name, value in actor.backend.weights()}
    answers = {served: _answers(actor, served) for served in (True, False)}
    assert same(after, state_of(actor)), "asking changes nothing"
    assert _answers(actor, True) == answers[True], "the same weights answer the same"
    sent, pushes.weights = pushes.weights, {}
    assert actor.update_weights() == pushes.version == "1"
    assert all(torch.equal(pushes.weights[name], value) for name, value in sent.items()), "an engine gets what serves"
    assert same(after, state_of(actor))
    actor.undo_steps()
    assert same(before, state_of(actor))
    assert actor.versions() == ("1", "1")
    return {"served": served, "candidate": candidate, "answers": answers}


def _answers(actor: Any, served: bool) -> list[Answer]:
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, actor.ask(served, probes()))
    return merged(parts, len(probes()))
