"""An engine answers each request with the adapter that it names, and holds no more of them than it may."""

from __future__ import annotations

import asyncio
import hashlib
import json
import pickle
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save

from groundwork.people import mark_of, request_name
from slime.backends.sglang_utils import people_hooks, server_hooks
from slime.backends.sglang_utils.people_hooks import HeldBySGLang
from slime.weight_sync import people
from slime.weight_sync.people import adapter_name, folder_of, people_folder
from slime.weight_sync.shelf import RETRY_SECONDS, UNNAMED, RefusedRequestError, Shelf, Taken

ANNA, BERT = request_name("anna"), request_name("bert")


class Counter:
    """SGLang's count of the requests of an adapter."""

    def __init__(self) -> None:
        self.number = 0

    def value(self) -> int:
        return self.number


class Manager:
    """As much of SGLang's tokenizer manager as the hooks touch; it loads what they give it."""

    def __init__(self) -> None:
        self.is_pause = False
        self.is_pause_cond = asyncio.Condition()
        self.server_args = SimpleNamespace(tp_size=2)
        self.loaded: dict[str, dict[str, torch.Tensor]] = {}
        self.lora_ref_cache: dict[str, str] = {}
        self.loads: list[str] = []
        self.unloads: list[str] = []
        self.refuses = ""
        self.keeps: set[str] = set()
        self.may_load = asyncio.Event()
        self.may_load.set()
        self.counters: dict[str, Counter] = {}
        self.lora_registry = SimpleNamespace(
            get_all_adapters=lambda: {name: SimpleNamespace(lora_id=name) for name in self.loaded},
            _counters=self.counters,
        )

    async def load_lora_adapter_from_tensors(self, request: Any) -> Any:
        self.loads.append(request.lora_name)
        await self.may_load.wait()
        if request.lora_name == self.refuses:
            return SimpleNamespace(success=False, error_message="no memory")
        assert request.lora_name not in self.loaded, "SGLang takes a name once"
        first, second = request.serialized_named_tensors
        assert first == second
        self.loaded[request.lora_name] = pickle.loads(first)
        self.lora_ref_cache[request.lora_name] = "__tensor__"
        self.counters[request.lora_name] = Counter()
        return SimpleNamespace(success=True)

    async def unload_lora_adapter(self, request: Any) -> Any:
        assert not self.is_pause
        assert self.counters[request.lora_name].value() == 0
        self.unloads.append(request.lora_name)
        await asyncio.sleep(0)
        if request.lora_name in self.keeps:
            return SimpleNamespace(success=False, error_message="it is stuck")
        del self.loaded[request.lora_name]
        return SimpleNamespace(success=True)


@pytest.fixture(autouse=True)
def no_sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("LoadLoRAAdapterFromTensorsReqInput", "UnloadLoRAAdapterReqInput", "UnloadLoRAAdapterReqOutput")
    stand_in = SimpleNamespace(**dict.fromkeys(names, SimpleNamespace))
    monkeypatch.setitem(sys.modules, "sglang.srt.managers.io_struct", stand_in)


def version_on_disk(run_dir: Path, number: int, person: str, *, accepted: bool = True) -> str:
    """Write a version whose only tensor has its number, and publish it if it is ``accepted``; return its name."""
    name = adapter_name(number, "0123abcd", 1000 + number, mark_of(person))
    folder = folder_of(people_folder(run_dir), name)
    folder.mkdir(parents=True)
    (folder / people.WEIGHTS).write_bytes(save({"lora": torch.full((2,), float(number))}))
    (folder / people.CONFIG).write_text(json.dumps({"r": 4}))
    (folder / "training.safetensors").write_bytes(b"not for the engine")
    if accepted:
        people.publish(run_dir, name)
    return name


def weights_of(run_dir: Path, name: str) -> Path:
    return folder_of(people_folder(run_dir), name) / people.WEIGHTS


class World:
    """An engine's shelf over a run's folder, by a clock that stands."""

    def __init__(self, run_dir: Path, most: int = 8) -> None:
        self.manager = Manager()
        people_folder(run_dir).mkdir(exist_ok=True)
        self.now = 0.0
        self.polls = 0
        self.shelf = Shelf(HeldBySGLang(self.manager), people_folder(run_dir), most, lambda: self.now, self._poll)

    async def _poll(self, seconds: float) -> None:
        self.polls += 1
        await asyncio.sleep(0)

    async def polled(self) -> None:
        """Return once a request has looked for a place three times more."""
        before = self.polls
        while self.polls < before + 3:
            await asyncio.sleep(0)

    async def use(self, wanted: str) -> Taken:
        """Take what answers, and give it back at once."""
        taken = await self.shelf.take(wanted)
        if taken.name is not None:
            self.shelf.give_back(taken.name)
        return taken

    async def refusal(self, wanted: str) -> RefusedRequestError:
        with pytest.raises(RefusedRequestError) as refused:
            await self.shelf.take(wanted)
        return refused.value


def run(test: Callable[[World], Coroutine[Any, Any, None]], run_dir: Path, most: int = 8) -> None:
    async def alone() -> None:
        await asyncio.wait_for(test(World(run_dir, most)), 30.0)

    asyncio.run(alone())


def test_each_person_gets_the_accepted_version_and_the_base_without_one(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        assert await world.use(ANNA) == Taken(None, "0")
        first = version_on_disk(tmp_path, 1, "anna")
        digest = hashlib.sha256(weights_of(tmp_path, first).read_bytes()).hexdigest()
        assert await world.use(ANNA) == Taken(first, "1", digest)
        assert await world.use(BERT) == Taken(None, "0")
        assert await world.use("base") == Taken(None, "base")
        second = version_on_disk(tmp_path, 2, "anna", accepted=False)
        assert (await world.use(ANNA)).name == first
        assert (await world.use(second)).version == "2", "a candidate answers by its name alone"
        assert world.manager.loaded[second]["lora"].tolist() == [2.0, 2.0]
        people.publish(tmp_path, second)
        assert (await world.use(ANNA)).name == second
        assert (await world.use(first)).name == first
        assert world.manager.loads == [first, second]

    run(test, tmp_path)


def test_requests_for_nothing_known_are_refused(tmp_path: Path) -> None:
    gone = adapter_name(1, "0123abcd", 5, mark_of("anna"))

    async def test(world: World) -> None:
        for wanted in ("mine", "weights-1-0123abcd-5", "person-", "../x", gone):
            assert (await world.refusal(wanted)).status_code == 400
        assert world.manager.loads == []

    run(test, tmp_path)


def test_a_version_that_cannot_be_loaded_gives_way_to_the_one_before_it_and_is_named(tmp_path: Path) -> None:
    first, second = (version_on_disk(tmp_path, number, "anna") for number in (1, 2))
    version_on_disk(tmp_path, 9, "bert")
    content = weights_of(tmp_path, second).read_bytes()
    breakers: list[Callable[[World, Path], object]] = [
        lambda _, file: file.write_bytes(content[: len(content) // 2]),
        lambda _, file: file.write_bytes(content.replace(b"F32", b"F99")),
        lambda _, file: file.unlink(),
        lambda _, file: (file.parent / people.CONFIG).write_text("{"),
        lambda _, file: shutil.rmtree(file.parent),
        lambda world, _: setattr(world.manager, "refuses", second),
    ]

    async def test(break_it: Callable[[World, Path], object], world: World) -> None:
        break_it(world, weights_of(tmp_path, second))
        for _ in range(2):
            taken = await world.use(ANNA)
            assert (taken.name, taken.version) == (first, "1")
            assert taken.fallback is not None
            assert taken.fallback["adapter"] == second
            assert taken.fallback["reason"]
        assert world.manager.loads.count(second) <= 1, "it is not read for every request"
        if second not in world.manager.refuses:
            shutil.rmtree(folder_of(people_folder(tmp_path), second), ignore_errors=True)
            version_on_disk(tmp_path, 2, "anna", accepted=False)
        world.manager.refuses = ""
        world.now += RETRY_SECONDS
        assert await world.use(ANNA) == Taken(second, "2", hashlib.sha256(content).hexdigest())

    for break_it in breakers:
        run(partial(test, break_it), tmp_path)


def test_a_candidate_that_changed_before_it_was_accepted_does_not_serve(tmp_path: Path) -> None:
    first, second = version_on_disk(tmp_path, 1, "anna"), version_on_disk(tmp_path, 2, "anna", accepted=False)

    async def test(world: World) -> None:
        await world.use(second)
        weights_of(tmp_path, second).write_bytes(save({"lora": torch.zeros(2)}))
        people.publish(tmp_path, second)
        taken = await world.use(ANNA)
        assert taken.name == first
        assert taken.fallback is not None
        assert "before it was accepted" in taken.fallback["reason"]

    run(test, tmp_path)


def test_without_any_version_that_loads_the_request_fails_and_nothing_else_answers(tmp_path: Path) -> None:
    versions = [version_on_disk(tmp_path, number, "anna") for number in (1, 2)]

    async def test(world: World) -> None:
        for name in versions:
            weights_of(tmp_path, name).unlink()
        refused = await world.refusal(ANNA)
        assert refused.status_code == 503
        assert "none of the 2 accepted versions" in str(refused)
        assert (await world.refusal(versions[1])).status_code == 503
        (people_folder(tmp_path) / people.BOOK).write_text("{")
        assert (await world.refusal(ANNA)).status_code == 503

    run(test, tmp_path)


def test_the_least_recently_used_idle_version_leaves_and_comes_back(tmp_path: Path) -> None:
    persons = [f"p{number}" for number in range(5)]
    names = [version_on_disk(tmp_path, 1, person) for person in persons]

    async def test(world: World) -> None:
        for number in (0, 1, 2, 0, 3):
            await world.use(request_name(persons[number]))
        assert world.shelf.held == [names[2], names[0], names[3]]
        assert world.manager.unloads == [names[1]]
        assert world.manager.lora_ref_cache.keys() == world.manager.loaded.keys(), "SGLang would load it by itself"
        assert (await world.use(request_name(persons[1]))).name == names[1]
        assert len(world.manager.loaded) == 3

    run(test, tmp_path, most=3)


def test_a_persons_newest_version_lets_the_idle_ones_before_it_go(tmp_path: Path) -> None:
    first, other = (version_on_disk(tmp_path, 1, person) for person in ("anna", "bert"))

    async def test(world: World) -> None:
        await world.use(BERT)
        used = await world.shelf.take(ANNA)
        second = version_on_disk(tmp_path, 2, "anna", accepted=False)
        await world.use(second)
        assert world.shelf.held == [other, first, second], "a candidate replaces nothing"
        people.publish(tmp_path, second)
        third = version_on_disk(tmp_path, 3, "anna")
        assert (await world.use(ANNA)).name == third
        assert world.shelf.held == [other, first, third], "a reply is still being written by the first"
        world.shelf.give_back(used.name or "")
        for number in range(4, 9):
            newest = version_on_disk(tmp_path, number, "anna")
            world.manager.keeps = {third} if number == 4 else set()
            assert (await world.use(ANNA)).name == newest
        assert world.shelf.held == [other, newest]
        assert world.manager.loaded.keys() == set(world.shelf.held)

    run(test, tmp_path)


def test_a_version_in_use_never_leaves_and_a_request_waits_for_a_place(tmp_path: Path) -> None:
    names = [version_on_disk(tmp_path, 1, person) for person in ("anna", "bert", "carl")]

    async def test(world: World) -> None:
        used = [(await world.shelf.take(request_name(person))).name for person in ("anna", "bert")]
        assert used == names[:2]
        waits = asyncio.create_task(world.use(request_name("carl")))
        await world.polled()
        assert not waits.done()
        assert (await world.use(request_name("bert"))).name == names[1], "the others do not wait"
        world.manager.counters[names[0]].number = 1  # its client left, the scheduler still works on it
        world.shelf.give_back(names[0])
        await world.polled()
        assert len(world.manager.loads) == 2
        world.manager.counters[names[0]].number = 0
        assert (await waits).name == names[2]
        assert world.manager.unloads == [names[0]]

    run(test, tmp_path, most=2)


def test_a_version_that_the_engine_does_not_let_go_of_holds_up_nobody(tmp_path: Path) -> None:
    """Another one leaves in its place; with none, the next request tries again at once."""
    names = [version_on_disk(tmp_path, 1, person) for person in ("anna", "bert", "carl", "dora")]

    async def test(world: World) -> None:
        for person in ("anna", "bert"):
            await world.use(request_name(person))
        world.manager.keeps = {names[0]}
        assert (await world.use(request_name("carl"))).name == names[2]
        assert world.shelf.held == [names[0], names[2]]
        world.manager.keeps = set(names)
        refused = await world.refusal(request_name("dora"))
        assert refused.status_code == 503
        assert "lets go of none: it is stuck" in str(refused)
        world.manager.keeps = set()
        assert (await world.use(request_name("dora"))).name == names[3]

    run(test, tmp_path, most=2)


def test_a_forgotten_version_that_the_engine_does_not_let_go_of_holds_up_nobody(tmp_path: Path) -> None:
    gone = version_on_disk(tmp_path, 1, "anna")
    version_on_disk(tmp_path, 1, "bert")

    async def test(world: World) -> None:
        await world.use(ANNA)
        people.forget(tmp_path, mark_of("anna"))
        world.manager.keeps = {gone}
        assert (await world.use(BERT)).version == "1"
        assert world.manager.unloads == [gone]
        assert await world.use(ANNA) == Taken(None, "0")

    run(test, tmp_path)


def test_nothing_leaves_while_requests_are_held(tmp_path: Path) -> None:
    names = [version_on_disk(tmp_path, 1, person) for person in ("anna", "bert")]

    async def test(world: World) -> None:
        await world.use(ANNA)
        world.manager.is_pause = True
        waits = asyncio.create_task(world.use(BERT))
        await world.polled()
        assert world.manager.unloads == []
        world.manager.is_pause = False
        assert (await waits).name == names[1]

    run(test, tmp_path, most=1)


def test_a_version_asked_for_at_once_by_many_is_loaded_once_also_when_the_first_leaves(tmp_path: Path) -> None:
    name = version_on_disk(tmp_path, 1, "anna")

    async def test(world: World) -> None:
        world.manager.may_load.clear()
        asked = [asyncio.create_task(world.use(ANNA)) for _ in range(5)]
        while not world.manager.loads:
            await asyncio.sleep(0)
        asked[0].cancel()
        world.manager.may_load.set()
        assert [taken.name for taken in await asyncio.gather(*asked[1:])] == [name] * 4
        assert world.manager.loads == [name]
        assert not world.shelf.in_use(name)

    run(test, tmp_path)


def test_a_request_keeps_its_version_through_publishing_and_forgetting(tmp_path: Path) -> None:
    first = version_on_disk(tmp_path, 1, "anna")

    async def test(world: World) -> None:
        taken = await world.shelf.take(ANNA)
        second = version_on_disk(tmp_path, 2, "anna")
        assert (await world.use(ANNA)).name == second
        people.forget(tmp_path, mark_of("anna"))
        assert await world.use(ANNA) == Taken(None, "0")
        assert (await world.refusal(second)).status_code == 400
        bert = version_on_disk(tmp_path, 1, "bert")
        await world.use(BERT)
        assert world.shelf.held == [first, bert], "what is forgotten leaves once nobody uses it"
        world.shelf.give_back(str(taken.name))
        version_on_disk(tmp_path, 2, "bert")
        await world.use(BERT)
        assert first not in world.manager.loaded

    run(test, tmp_path)


def test_answers_say_which_adapter_gave_them(tmp_path: Path) -> None:
    first, second = (version_on_disk(tmp_path, number, "anna") for number in (1, 2))
    weights_of(tmp_path, second).unlink()
    hooked = people_hooks.hooks(people_folder(tmp_path), 4)
    answer_as_asked = hooked[f"{server_hooks.MANAGER}.generate_request"]
    keep_while_used = hooked[f"{server_hooks.MANAGER}.unload_lora_adapter"]
    asked = []

    async def original(manager: Manager, request: Any) -> AsyncIterator[Any]:
        asked.append(request.lora_path)
        spans = [{"version": "default", "start": 0, "end": 9}]
        yield {"meta_info": {"weight_version": "default", "weight_versions": spans}}
        refused = await keep_while_used(Manager.unload_lora_adapter, manager, SimpleNamespace(lora_name=first))
        assert (refused.success, refused.error_message) == (False, server_hooks.IN_USE)
        yield [{"meta_info": {"weight_version": "default"}}, {"no": "meta"}]

    async def metas(manager: Manager, wanted: Any) -> list[dict[str, Any]]:
        answers = [a async for a in answer_as_asked(original, manager, SimpleNamespace(lora_path=wanted))]
        return [answers[0]["meta_info"], answers[1][0]["meta_info"]]

    async def test() -> None:
        manager = Manager()
        for meta in await metas(manager, ANNA):
            assert (meta["weight_version"], meta["adapter"]) == ("1", first)
            assert meta["adapter_fallback"]["adapter"] == second
            assert meta["adapter_sha256"] == hashlib.sha256(weights_of(tmp_path, first).read_bytes()).hexdigest()
        assert asked == [first]
        for wanted in (None, "", [ANNA, BERT]):
            with pytest.raises(RefusedRequestError) as refused:
                await metas(manager, wanted)
            assert refused.value.status_code == 400
        assert UNNAMED.startswith("each person has an adapter of their own here")
        manager.is_pause = True
        held = asyncio.create_task(metas(manager, first))
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(asked) == 1
        async with manager.is_pause_cond:
            manager.is_pause = False
            manager.is_pause_cond.notify_all()
        assert [meta["weight_version"] for meta in await held] == ["1", "1"]
        assert (await keep_while_used(Manager.unload_lora_adapter, manager, SimpleNamespace(lora_name=first))).success
        assert manager.loaded == {}

    asyncio.run(test())


def test_an_engine_without_the_runs_folder_answers_nobody(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        people_folder(tmp_path).rmdir()
        refused = await world.refusal(ANNA)
        assert refused.status_code == 503
        assert "give --run-dir a folder that all machines of the run share" in str(refused)

    run(test, tmp_path)


def test_the_base_and_a_person_without_a_version_say_so(tmp_path: Path) -> None:
    people_folder(tmp_path).mkdir()
    answer_as_asked = people_hooks.hooks(people_folder(tmp_path), 4)[f"{server_hooks.MANAGER}.generate_request"]

    async def original(_: Any, request: Any) -> AsyncIterator[Any]:
        assert request.lora_path is None
        yield {"meta_info": {"weight_version": "default"}}

    async def meta(wanted: str) -> dict[str, Any]:
        [answer] = [a async for a in answer_as_asked(original, Manager(), SimpleNamespace(lora_path=wanted))]
        return answer["meta_info"]

    async def test() -> None:
        for wanted, version in (("base", "base"), (ANNA, "0")):
            found = {"weight_version": version, "adapter_sha256": None, "adapter": "base"}
            assert await meta(wanted) == found

    asyncio.run(test())
