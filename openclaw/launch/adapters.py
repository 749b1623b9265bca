"""``ADAPTERS``: whose adapter answers and learns, why a run cannot do that, and what it takes.

    off         as the other variables say
    shared      one LoRA adapter for everybody, as ``USE_LORA=1`` alone
    per-owner   an adapter for each person, which this person's batches alone train

Imports neither torch nor Ray.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args

from slime.args import Arguments
from slime.arguments.memory_budget.budget import PEOPLE_PER_BATCH
from slime.arguments.memory_budget.gpu import GIB
from slime.arguments.memory_budget.shape import policy_shape

Adapters = Literal["off", "shared", "per-owner"]
OFF, SHARED, PER_OWNER = get_args(Adapters)
MIB = 2**20
HELD, KEPT = 128, 4
"""Versions that an engine holds in main memory, and accepted versions of a person that stay on disk."""
STATE = 12
"""Bytes per parameter of an adapter's float32 weights and moments."""
SHOWN_PEOPLE = 100


def adapter_problems(choice: object, args: Arguments, *, task: bool, logs: bool) -> Iterator[str]:
    """Yield why a run cannot work as ``ADAPTERS`` says, and what to type.

    Args:
        choice: the variable's value.
        args: of the run.
        task: whether it is a run on a task, which has no conversations.
        logs: whether it trains from recorded conversations.
    """
    if choice == OFF:
        return
    if not args.use_lora:
        yield f"ADAPTERS={choice} needs LoRA; add USE_LORA=1, or set ADAPTERS=off"
    if choice == PER_OWNER and task:
        yield f"ADAPTERS={choice} is for conversations, whose keys say whose they are; set ADAPTERS=shared for a task"
    elif choice == PER_OWNER and logs:
        yield f"ADAPTERS={choice} is for live conversations; set ADAPTERS=shared to train from DATA_PATH"
    elif choice == PER_OWNER and args.num_nodes > 1:
        yield f"ADAPTERS={choice} is for one machine, whose engines read adapters from RUN_DIR; set NNODES=1, or ADAPTERS=shared"


class Room(NamedTuple):
    """Bytes that adapters of people take.

    Attributes:
        of_batch: on the GPUs of an engine, for the people of a batch.
        of_held: in the main memory of an engine, for the versions that it holds.
        of_trained: in the main memory of the trainer.
        of_person: on disk, with the accepted versions that are kept and one that is decided.
    """

    of_batch: int
    of_held: int
    of_trained: int
    of_person: int


def room_of(parameters: int, element: int, trained: int, per_batch: int = PEOPLE_PER_BATCH, held: int = HELD) -> Room:
    """Return what adapters take.

    Args:
        parameters: of one.
        element: bytes of a parameter as engines read it.
        trained: people in the trainer's memory, besides the one in the model and one whom nobody has trained.
        per_batch: people of a batch on an engine, the base included.
        held: versions in an engine's main memory.
    """
    return Room(
        per_batch * element * parameters,
        held * element * parameters,
        (trained + 2) * STATE * parameters,
        (KEPT + 1) * (element + STATE) * parameters,
    )


def adapter_lines(choice: object, args: Arguments) -> Iterator[str]:
    """Yield what an adapter per person takes on engines, in main memory and on disk; nothing for another choice."""
    shape = policy_shape(args)
    if choice != PER_OWNER or shape is None or not args.use_lora:
        return
    each, trained = shape.adapters(args.lora_rank), args.people_in_memory
    element = 4 if args.train_dtype == "float32" else 2
    given = vars(args)
    per_batch = int(given.get("sglang_max_loras_per_batch") or PEOPLE_PER_BATCH)
    held = int(given.get("sglang_max_loaded_loras") or HELD)
    room = room_of(each, element, trained, per_batch, held)
    yield (
        f"adapters one per person, of {each / 1e6:.1f} million parameters ({element * each / MIB:.1f} MiB): an engine answers "
        f"with {per_batch} in a batch ({room.of_batch / GIB:.1f} GiB of its GPUs) and holds {held} in main memory "
        f"({room.of_held / GIB:.1f} GiB)"
    )
    yield (
        f"         the trainer holds {trained} people in main memory, and two copies ({room.of_trained / GIB:.1f} GiB); on disk a person takes "
        f"{room.of_person / MIB:.0f} MiB with {KEPT} accepted versions and one that is decided, {SHOWN_PEOPLE} people "
        f"{SHOWN_PEOPLE * room.of_person / GIB:.1f} GiB"
    )
