"""What integration tests share: an SGLang engine, a Tinker server, and an order in which two processes end at about the same time.

A file's tests stay together; so do the files of one entry of `SHARED`, and those of `tests/gpu`, because they measure the memory
of a whole GPU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from agentrl.sandbox.bubblewrap import Bubblewrap
from agentrl.sandbox.supervised import SupervisedSandbox
from lab.testkit import tiny_random
from tests.helpers.sandboxes import sandbox
from tests.helpers.tinker_server import NAME, TinkerServer

LONGEST_FIRST = (
    "test_vllm_live",
    "test_tinker_backend",
    "test_demo_cpu",
    "test_tinker_server",
    "test_tinker_methods",
    "test_gateway_pictures",
    "test_whole_loop",
    "test_certificate_live",
    "test_adapters_live",
    "test_train_loop",
    "test_tinker_cookbook",
    "test_offline_run",
    "test_window_flow",
    "test_openclaw_client",
    "test_openclaw_harness",
    "test_example_method",
    "test_agent_clients",
    "test_page_commands",
    "test_gui_browser",
    "test_engine_live",
    "test_gateway_live",
    "test_teacher_logprobs",
    "test_megatron_loop",
)
TEST_SECONDS = 600
"""A test may start an engine or a cluster, which takes a minute and more on a busy machine."""
LONG_FILE_SECONDS = 20.0
SHARED = {
    "engine": {
        *("test_engine_live", "test_gateway_live", "test_hybrid_live", "test_teacher_logprobs", "test_megatron_loop"),
        *("test_agent_rollouts", "test_gateway_episodes", "test_cache_isolation"),
    },
    "tinker": {"test_tinker_server", "test_tinker_methods"},
}
"""Files by what they share: ``engine`` and ``tinker_server``."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort files by `LONGEST_FIRST`, then the other integration tests, then the slow files of unit tests. An integration test
    has `TEST_SECONDS` or says more.
    """
    rank = {name: number for number, name in enumerate(LONGEST_FIRST)}
    here = Path(__file__).parent
    for item in items:
        if item.path.parent == here and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))

    def place(item: pytest.Item) -> int:
        if item.path.parent.name == "gpu":
            return -1
        return rank.get(item.path.stem, len(rank) if item.path.parent == here else len(rank) + 1)

    items.sort(key=place)


class TogetherByWhatIsShared(LoadScopeScheduling):
    """Gives a process one file after the other, and the files of an entry of `SHARED` as if they were one, and so those for a GPU."""

    def _split_scope(self, nodeid: str) -> str:
        file = Path(nodeid.partition("::")[0])
        if file.parent.name == "gpu":
            return "gpu"
        return next((shared for shared, files in SHARED.items() if file.stem in files), str(file))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the seconds of each long file, by which `LONGEST_FIRST` is sorted: set-up, tests and clean-up."""
    seconds: dict[str, float] = defaultdict(float)
    for report in chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            seconds[Path(report.nodeid.partition("::")[0]).stem] += report.duration
    longest = sorted(((taken, name) for name, taken in seconds.items() if taken >= LONG_FILE_SECONDS), reverse=True)
    if longest:
        terminalreporter.section("seconds of files")
        terminalreporter.write_line(", ".join(f"{name} {taken:.0f}" for taken, name in longest))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> TogetherByWhatIsShared:
    """Return who decides which process runs what."""
    return TogetherByWhatIsShared(config, log)


@pytest.fixture(scope="session")
def random_models(tiny_random_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two checkpoints of one shape; the engine starts with the first, a weight version v stands for number v % 2."""
    return [tiny_random_model, tiny_random.build(tmp_path_factory.mktemp("model") / "second", seed=12)]


@pytest.fixture(scope="session")
def references(random_models: list[Path]) -> list[Any]:
    """`random_models` in transformers, float32."""
    import torch
    from transformers import AutoModelForCausalLM

    return [AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval() for path in random_models]


@pytest.fixture(scope="session")
def engine(tiny_random_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An engine that serves the first of `random_models`; whoever changes its weights ends with an even version."""
    from lab.testkit.live_engine import engine_arguments, live_engine

    with live_engine(engine_arguments(tiny_random_model, tmp_path_factory.mktemp("engine"))) as engine:
        yield engine


@pytest.fixture(scope="session")
def tinker_server(tiny_random_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinkerServer]:
    """A server of the Tinker interface, in whose folder the model lies under its name, as on the hub."""
    folder = tmp_path_factory.mktemp("tinker")
    (folder / NAME).symlink_to(tiny_random_model)
    started = TinkerServer(folder / NAME, folder, NAME, "--snapshot-steps", "3")
    started.start()
    yield started
    assert started.stop() in (0, 128 + 15, -15), started.text()[-2000:]


@pytest.fixture(scope="module")
def provider() -> Bubblewrap:
    """Sandboxes by bubblewrap, proved once for each file."""
    return Bubblewrap()


@pytest.fixture
async def box(provider: Bubblewrap, tmp_path: Path) -> AsyncIterator[SupervisedSandbox]:
    """A running sandbox with small limits."""
    async with sandbox(provider, tmp_path) as started:
        yield started
