"""Everybody's own adapter in the trainer: whose is in the model, whose are in host memory, and whose are on disk alone.

One person at a time is in the model and the optimizer of a rank. All that a step changes (`slime.backends.trainer.backend`)
belongs to this person: adapter, moments, step counts, schedule and random state, besides the numbers of the versions. So what
one person's batches do depends on nobody else, bit for bit, however often others are trained in between.

Guarantees: a person who has no version yet begins as exactly the base, with an A that the mark alone decides. Whoever leaves
the model has a folder with the same state (`slime.weight_sync.people`), so one who leaves host memory, too, is only read
again. A folder appears by rename, and a version serves once the book says so: a process that ends at any moment leaves whole
folders and one book. After a restart the book says what the checkpoint says. Steps that are undone delete their folder.
Somebody may forget a person at any moment (`slime.weight_sync.people.forget`): what the trainer has of this person then is
neither kept nor published, and the next batch begins as the base.

A checkpoint of the run has no weights: its ``meta.json`` names each person's version under `PEOPLE`.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from groundwork.checkpoint_names import FORGOTTEN, NEWEST_VERSIONS, PEOPLE, STATE_OF_PERSON
from slime.args import Arguments
from slime.backends.trainer.backend import PolicyBackend
from slime.backends.trainer.host_memory import HostCopy
from slime.backends.trainer.process import RankProcess
from slime.backends.trainer.trainable import check_same_adapters, put_adapter
from slime.checkpoints import checkpoint_folder
from slime.checkpoints.all_ranks import on_all_ranks, on_rank_zero
from slime.checkpoints.checkpoint_folder import fresh_folder, unfinished
from slime.checkpoints.versions import checkpoint_folders
from slime.exceptions import CheckpointError, PeopleError
from slime.utils.hf_checkpoint import DTYPES
from slime.weight_sync import ADAPTER_NAME, Sent, maker
from slime.weight_sync.adapter import PUSHES
from slime.weight_sync.engine_sync import EngineWeightSync
from slime.weight_sync.people import (
    Book,
    Version,
    adapter_name,
    digest_of,
    discard,
    folder_of,
    keep,
    mark_in,
    not_shared,
    people_folder,
    prune,
    publish,
    set_back,
    sign,
    signature,
)
from slime.weight_sync.pushes import Versions, Weights
from slime.weight_sync.remote_engine import RemoteEngine
from slime.weight_sync.requests import cast

logger = logging.getLogger(__name__)


@dataclass
class _Person:
    """What a rank knows of a person.

    Attributes:
        versions: their numbers.
        name: of the version whose folder has the state of the last accepted step; None before the first.
        forgotten: how often the person had been forgotten when this state began.
    """

    versions: Versions = field(default_factory=Versions)
    name: str | None = None
    forgotten: int = 0


class People:
    """Owns the states of everybody on one rank. All methods are collective unless stated otherwise.

    :meth:`let_in` comes first; the other methods then speak of the person that is in. Steps follow as
    :meth:`stepped`; then :meth:`undo`, or :meth:`publish`.

    Attributes:
        mark: who is in the model (`groundwork.people.mark_of`); None before the first.
        versions: of the person that is in.
    """

    def __init__(
        self,
        args: Arguments,
        backend: PolicyBackend,
        process: RankProcess,
        device: torch.device,
        rank: int,
        meta: Callable[[int], dict[str, Any]],
    ) -> None:
        """Take the parts of a rank whose model has taken no step; ``meta`` returns what describes it after a rollout."""
        self._args, self._backend, self._process, self._device, self._rank = args, backend, process, device, rank
        self._meta = meta
        self._folder = people_folder(args.run_dir)
        self._book = Book(self._folder)
        self._people: dict[str, _Person] = {}
        self._host: OrderedDict[str, HostCopy] = OrderedDict()
        """Of people that are not in, the one that was in last at the end; each equals the person's folder."""
        self._buffer = HostCopy(device)
        """Of the person that is in, if ``_copied``."""
        self._begun = HostCopy(device)
        self._begun.take(backend.changing())
        self.mark: str | None = None
        self._rollout_id = -1
        self._clean, self._copied = True, False
        """Whether the person that is in has a folder with the same state, or no state yet; whether the buffer has it."""
        self._candidate: str | None = None

    @property
    def versions(self) -> Versions:
        """The numbers of the person that is in; of the base while nobody is."""
        return Versions() if self.mark is None else self._people[self.mark].versions

    # Who is in

    def let_in(self, mark: str) -> None:
        """Exchange the person in the model for ``mark``, who may be new.

        Raises:
            CheckpointError: the person's folder cannot be read, or is another run's.
        """
        self.settle()
        self._forget_who_is_gone()
        if mark == self.mark:
            return
        self._let_out()
        try:
            self._put(mark)
        except CheckpointError:
            if mark not in self._forget_who_is_gone():
                raise
            self._put(mark)
        self.mark = mark

    def _put(self, mark: str) -> None:
        """Put the state of ``mark`` into the model."""
        if mark not in self._people:
            self._people[mark] = _Person(forgotten=self._of_rank_zero(lambda: self._book.forgotten(mark)))
        person = self._people[mark]
        if (kept := self._host.pop(mark, None)) is not None:
            self._buffer = kept
            kept.put(self._backend.changing())
            self._copied = True
        elif person.name is not None:
            self._read(person.name)
            self._copied = True
        else:
            self._begin(mark)

    def _let_out(self) -> None:
        """Keep the state of who is in, and leave a buffer that may be overwritten."""
        mark, self.mark = self.mark, None
        if mark is None or self._args.people_in_memory == 0:
            self._copied = False
            return
        if not self._copied:
            self._buffer.take(self._backend.changing())
        self._copied = False
        self._host[mark] = self._buffer
        over = len(self._host) > self._args.people_in_memory
        self._buffer = self._host.popitem(last=False)[1] if over else HostCopy(self._device)

    def _begin(self, mark: str) -> None:
        """Begin as the base, in a state that the mark alone decides."""
        seed = self._args.seed + int(mark, 16)
        self._begun.put(self._backend.changing())
        self._backend.begin_adapter(seed)
        self._process.seed(self._args.changed(seed=seed))

    def _read(self, name: str) -> None:
        """Put the state of a version into the model.

        Raises:
            CheckpointError: a rank cannot read its part, or it is another run's.
        """
        folder, meta = folder_of(self._folder, name), dict[str, Any]()

        def read() -> None:
            try:
                meta.update(json.loads((folder / STATE_OF_PERSON).read_text()))
            except (OSError, ValueError) as error:
                raise CheckpointError(
                    f"{folder} cannot be read ({error}); go back to an earlier version with openclaw-rl rollback"
                ) from error
            check_same_adapters(self._args, meta)
            if (then := meta["world_size"]) != self._process.world_size:
                raise CheckpointError(f"{folder} is of {then} training ranks: use as many")
            if (then := meta["backend"]) != self._args.train_backend:
                raise CheckpointError(f"{folder} was written by {then}: add --train-backend {then}")
            self._buffer.read(_training_file(folder, self._rank))

        on_all_ranks(read)
        self._buffer.put(self._backend.changing())
        self._rollout_id = int(meta["rollout_id"])

    def _forget_who_is_gone(self) -> list[str]:
        """Let go of everybody whom somebody forgot, or whose folders somebody deleted; return their marks.

        If it is who is in, nobody is in afterwards.
        """
        gone = self._of_rank_zero(self._gone)
        for mark in gone:
            logger.warning("the adapters of %s were deleted: the base serves and is trained", mark)
            del self._people[mark]
            if (kept := self._host.pop(mark, None)) is not None:
                kept.close()
            if mark == self.mark:
                self.mark, self._clean, self._copied, self._candidate = None, True, False, None
        return gone

    def _gone(self) -> list[str]:
        book = self._book.content()
        return [
            mark
            for mark, person in self._people.items()
            if book.times(mark) != person.forgotten
            or (person.name is not None and not folder_of(self._folder, person.name).is_dir())
        ]

    # Steps

    def stepped(self, rollout_id: int) -> None:
        """Note that a rollout may have changed the state of who is in."""
        self._rollout_id = rollout_id
        self._clean, self._copied, self._candidate = False, False, None

    def undo(self) -> None:
        """Note that the steps since :meth:`let_in` were undone, and delete the folder of their candidate."""
        self._clean, self._copied = True, False
        if self._candidate is not None:
            folder, self._candidate = folder_of(self._folder, self._candidate), None
            on_rank_zero(lambda: shutil.rmtree(folder, ignore_errors=True))

    def restore(self, name: str | None) -> None:
        """Go back to the state of an earlier version of who is in, None: of the base; the numbers only rise."""
        mark = self.mark
        assert mark is not None, "call let_in first"
        if name is None:
            self._begin(mark)
        else:
            try:
                self._read(name)
            except CheckpointError:
                if mark not in self._forget_who_is_gone():
                    raise
                return
        self._clean, self._copied = False, False

    # Folders

    def settle(self) -> None:
        """Make sure that who is in has a folder with the same state, unless somebody has deleted this person's.

        The steps must be accepted.
        """
        if self.mark is None or self._clean:
            return
        self._forget_who_is_gone()
        if self.mark is None:
            return
        name = self._candidate or self._store()
        if name is not None:
            self._people[self.mark].name, self._clean, self._candidate = name, True, None

    def offer(self) -> Sent:
        """Write the folder of a candidate, whom nobody serves yet; return its name and its file's digest.

        Both are None if somebody has forgotten this person.
        """
        self._forget_who_is_gone()
        name = self._candidate = None if self.mark is None else self._store()
        if name is None:
            return Sent()
        folder = folder_of(self._folder, name)

        def sent() -> Sent:
            try:
                return Sent(name, digest_of(folder))
            except PeopleError:
                if folder.is_dir():
                    raise
                return Sent()

        return self._of_rank_zero(sent)

    def publish(self) -> None:
        """Let the state of who is in serve this person, unless somebody has deleted it meanwhile."""
        assert self.mark is not None, "call let_in first"
        self.settle()
        if self.mark is None:
            return
        mark, person = self.mark, self._people[self.mark]
        name = person.name
        assert name is not None, "a version has a folder"

        def change_the_book() -> None:
            try:
                publish(self._args.run_dir, name, person.forgotten)
            except PeopleError:
                if folder_of(self._folder, name).is_dir() and mark not in self._gone():
                    raise
                return
            prune(self._args.run_dir, mark, self._held())

        on_rank_zero(change_the_book)
        self._forget_who_is_gone()

    def _store(self) -> str | None:
        """Write a new folder with the state of who is in, and return the version's name.

        None, and nobody is in, if somebody forgot this person meanwhile.
        """
        mark = self.mark
        assert mark is not None, "call let_in first"
        args, versions, forgotten = self._args, self.versions, self._people[mark].forgotten
        push = self._of_rank_zero(lambda: next(PUSHES))
        name = adapter_name(versions.next(), maker(args), push, mark)
        final = folder_of(self._folder, name)
        temporary = unfinished(final)
        tensors = {
            key: value.cpu().contiguous()
            for key, value in cast(self._backend.pushed_weights(), DTYPES[args.train_dtype])
        }
        self._buffer.take(self._backend.changing())
        self._copied = True
        meta = self._meta(self._rollout_id) | versions.state() | {"backend": args.train_backend, FORGOTTEN: forgotten}

        def begin() -> None:
            fresh_folder(final)
            put_adapter(args, tensors, temporary)
            (temporary / STATE_OF_PERSON).write_text(json.dumps(meta, indent=2))

        try:
            on_rank_zero(begin)
            on_all_ranks(lambda: self._buffer.write(_training_file(temporary, self._rank)))
            on_rank_zero(lambda: keep(args.run_dir, name, temporary, forgotten))
        except Exception:  # files in a folder that is being deleted fail in many ways
            if mark not in self._forget_who_is_gone():
                raise
            on_rank_zero(lambda: discard(temporary))
            return None
        return name

    # Checkpoints

    def write(self, root: Path, iteration: int, meta: dict[str, Any]) -> Path:
        """Write a checkpoint that names everybody's version, and return its folder; ``meta``: what else it says of the rank."""
        self.settle()
        self._forget_who_is_gone()
        everybody = sorted(self._people.items())
        own = {
            PEOPLE: {mark: person.name for mark, person in everybody if person.name is not None},
            NEWEST_VERSIONS: {mark: person.versions.state()["newest_version"] for mark, person in everybody},
            "backend": self._args.train_backend,
        }
        meta = {name: value for name, value in meta.items() if name != "schedule"} | own
        return checkpoint_folder.write(root, iteration, meta, lambda path: None)

    def load(self, meta: dict[str, Any] | None) -> None:
        """Continue from a checkpoint with ``meta``, None: without one; the book follows.

        Raises:
            CheckpointError: the checkpoint is not of adapters per person.
            PeopleError: a version in it is gone, or the book is unreadable.
        """
        named: dict[str, str] = {}
        newest: dict[str, int] = {}
        if meta is not None:
            if PEOPLE not in meta:
                raise CheckpointError("the checkpoint is of one policy for everybody: remove --adapter-per-person")
            check_same_adapters(self._args, meta)
            named, newest = meta[PEOPLE], meta[NEWEST_VERSIONS]
            if named and not self._folder.is_dir():
                raise CheckpointError(
                    f"{self._folder} is missing, which has the adapters of the checkpoint: use its --run-dir"
                )
        number = self._of_rank_zero(lambda: sign(self._args.run_dir))
        on_all_ranks(partial(self._check_shared, number))
        while True:
            there, times = self._of_rank_zero(lambda: self._there(named, newest))
            try:
                on_rank_zero(
                    partial(self._follow, there, set(named.values()) - set(there.values()), resumed=meta is not None)
                )
                break
            except (CheckpointError, PeopleError):
                if self._of_rank_zero(lambda: self._there(named, newest)) == (there, times):
                    raise  # nobody was forgotten meanwhile
        for mark, number in newest.items():
            if mark in named and mark not in there:
                continue
            name = there.get(mark)
            person = self._people[mark] = _Person(name=name, forgotten=times[mark])
            live = 0 if name is None else _number(name)
            person.versions.load({"weight_version": live, "newest_version": max(live, number)})

    def _check_shared(self, number: str) -> None:
        if signature(self._folder) != number:
            raise not_shared(self._args.run_dir, f"training rank {self._rank}")

    def _there(self, names: Mapping[str, str], marks: Iterable[str]) -> tuple[dict[str, str], dict[str, int]]:
        """Return the versions of those in a manifest whom nobody has deleted since, and how often each was forgotten."""
        book = self._book.content()
        there = {mark: name for mark, name in names.items() if _begun_after(self._folder, name) == book.times(mark)}
        if gone := sorted(names.keys() - there.keys()):
            logger.warning("the adapters of %s were deleted: the base serves and is trained", ", ".join(gone))
        return there, {mark: book.times(mark) for mark in marks}

    def _follow(self, names: Mapping[str, str], unwanted: Iterable[str], *, resumed: bool) -> None:
        """Make the book say what the checkpoint says, and delete folders that neither needs, and those of ``unwanted`` names."""
        run_dir, lines = self._args.run_dir, Book(self._folder).lines()
        said, ahead = {}, []
        for mark, name in names.items():
            serving = lines[mark][0] if mark in lines else None
            if _number(name) == 0:
                continue
            if serving is not None and _number(name) > serving.number:
                said[mark] = serving.name
                ahead.append(name)
            else:
                said[mark] = serving.name if serving is not None and self._same(serving, name) else name
        for mark in set_back(run_dir, said):
            logger.info("the checkpoint decides which version serves %s", mark)
        for name in ahead:
            publish(run_dir, name)
        if resumed:
            self._prune_all()
            for name in unwanted:
                discard(folder_of(self._folder, name))

    def _same(self, serving: Version, name: str) -> bool:
        return serving.number == _number(name) and serving.sha256 == digest_of(folder_of(self._folder, name))

    def let_go(self, names: Iterable[str]) -> None:
        """Delete those versions of checkpoints that are deleted now which nobody needs any more. Rank 0 only."""
        held = self._held()
        for mark in {mark for name in set(names) - set(held) if (mark := mark_in(name)) is not None}:
            prune(self._args.run_dir, mark, [name for name in held if mark_in(name) == mark])

    def _prune_all(self) -> None:
        held = self._held()
        for folder in self._folder.iterdir() if self._folder.is_dir() else ():
            if folder.is_dir():
                prune(self._args.run_dir, folder.name, [name for name in held if mark_in(name) == folder.name])

    def _held(self) -> list[str]:
        """Return the versions that checkpoints need or that are somebody's state."""
        held = [person.name for person in self._people.values() if person.name is not None]
        return held + versions_in(checkpoint_folders(Path(self._args.save)) if self._args.save else ())

    def _of_rank_zero(self, value: Callable[[], Any]) -> Any:
        """Return what ``value`` returns on rank 0."""
        if self._process.world_size == 1:
            return value()
        box = [value() if self._rank == 0 else None]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def close(self) -> None:
        """Free the host memory."""
        for kept in (self._begun, self._buffer, *self._host.values()):
            kept.close()
        self._host.clear()


class Publishing:
    """The way of people's adapters to the engines, in place of `slime.weight_sync.pushes.Pushes`: nothing is pushed.

    Engines read a version from its folder when the first request needs it. Only one that started again is told to go on.
    """

    def __init__(self, args: Arguments, people: People, *, device: torch.device, address: str) -> None:
        """``people``: whose adapters; ``address``: of rank 0."""
        self._people = people
        self._engines = _Told(args, device=device, address=address)
        self._told = True

    def connect(self, engines: list[RemoteEngine]) -> None:
        """Reach ``engines`` from now on."""
        self._engines.connect(engines)
        self._told = False

    def push(self, weights: Weights, version: str) -> None:
        """Let ``version`` serve the person that is in, unless it does, or nobody is in since this one was forgotten."""
        if self._people.mark is not None and version != str(self._people.versions.live):
            self._people.publish()
        if not self._told:
            self._engines.serve(version)
            self._told = True

    def offer(self, weights: Weights, version: str) -> Sent:
        """Write the folder of the candidate ``version``; return its name and digest."""
        return self._people.offer()

    def push_to_canary(self, weights: Weights, version: str) -> None:
        """No engine is first."""
        raise ValueError("--canary-engine does not go with --adapter-per-person; remove it")

    def take_back(self, weights: Weights, version: str) -> None:
        """No-op: a candidate serves nobody, and its folder went with its steps."""

    def close(self) -> None:
        """Let go of the engines without calling them."""
        self._engines.close()


class _Told(EngineWeightSync):
    """Tells engines to answer; there is no group to join."""

    def _join(self) -> None:
        """Check that each engine's machine shares the folder of everybody's adapters.

        Raises:
            PeopleError: one does not.
        """
        run_dir = self._args.run_dir
        seen = self._call(RemoteEngine.signature, str(people_folder(run_dir).absolute()))
        own = signature(people_folder(run_dir))
        for number, theirs in enumerate(seen):
            if theirs is None or theirs != own:
                raise not_shared(run_dir, f"policy engine {number}")

    def _leave(self, *, broken: bool) -> None:
        """No-op."""

    def _serve(self, version: str) -> None:
        self._call(RemoteEngine.continue_generation)


def versions_in(checkpoints: Iterable[Path]) -> list[str]:
    """Return the names of people's versions in checkpoints; of none in those of one policy for everybody."""
    names: list[str] = []
    for folder in checkpoints:
        try:
            names += checkpoint_folder.read_meta(folder).get(PEOPLE, {}).values()
        except FileNotFoundError:
            continue  # incomplete
    return names


def _training_file(folder: Path, rank: int) -> Path:
    return folder / f"training{f'-{rank}' if rank else ''}.safetensors"


def _number(name: str) -> int:
    match = ADAPTER_NAME.fullmatch(name)
    if match is None:
        raise CheckpointError(f"the checkpoint names {name!r}, which is no person's version")
    return int(match[1])


def _begun_after(people: Path, name: str) -> int | None:
    """Return how often the person had been forgotten when a version's state began; None if its folder is gone."""
    try:
        return int(json.loads((folder_of(people, name) / STATE_OF_PERSON).read_text()).get(FORGOTTEN, 0))
    except FileNotFoundError:
        return None
