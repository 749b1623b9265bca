"""Fixtures shared by all tests; those of `tests/gpu` have a conftest of their own, which must do without this one."""

from __future__ import annotations

import functools
import gc
import os
import signal
import sqlite3
import ssl
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import certifi
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from openclaw.config.runtime_variables import VARIABLES
from openclaw.launch.methods import methods_of
from openclaw.ledger import schema
from slime.arguments.memory_budget import gpu
from tests.helpers.import_path import add_folders
from tests.helpers.model_fixtures import tiny_random_model, tiny_random_tied_model

__all__ = ["tiny_random_model", "tiny_random_tied_model"]

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# A proxy of the environment is not asked for this machine, whatever else it is there for.
for _name in ("NO_PROXY", "no_proxy"):
    os.environ[_name] = ",".join(filter(None, [os.environ.get(_name), "127.0.0.1", "localhost", "::1"]))
# What a shell sets for a gateway (HOST, PORT, ...) is not for the ones that are tested.
for _variable in (*VARIABLES, *(each for method in methods_of() for each in method.config.variables())):
    for _name in _variable.names:
        os.environ.pop(_name, None)
# torch asks for the name of every address that it connects to, 127.0.0.1 too; a lost answer costs 5 to 10 s otherwise.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")

# A loaded machine is not a failure of what is tested, and every run tries the same examples; --hypothesis-seed tries others.
settings.register_profile(
    "any machine",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("any machine")
# Hypothesis would read the constants of every module that is imported by now, and try other examples for each set of modules.
providers._get_local_constants = lambda: providers._local_constants

# A job of a script in the background begins with SIGINT ignored, and so would every program that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

REPOSITORY = Path(__file__).resolve().parent.parent
add_folders(REPOSITORY)  # test modules, which are imported after this one, name modules of these folders
OF_WEB = (certifi.where(), os.environ.get("SSL_CERT_FILE"))
_new_context = ssl.create_default_context


@functools.cache
def _web_context(cafile: str) -> ssl.SSLContext:
    return _new_context(cafile=cafile)


def _context(*args: Any, **given: Any) -> ssl.SSLContext:
    of_web = not args and list(given) == ["cafile"] and given["cafile"] in OF_WEB
    return _web_context(given["cafile"]) if of_web else _new_context(*args, **given)


# Every client of httpx, and so of openai, would read the certificates of the web again, which takes 30 ms.
ssl.create_default_context = _context


class _NewLedgers:
    """Gives a new ledger the tables that the migrations made for the first one; thousands of tests open one, 20 ms each."""

    def __init__(self) -> None:
        self._migrate = schema.migrate
        self.copies = 0
        self._lock = threading.Lock()
        self._first: sqlite3.Connection
        self._made_by: object = None

    def __call__(self, connection: sqlite3.Connection, path: Path) -> None:
        """Do what `openclaw.ledger.schema.migrate` does."""
        with self._lock:
            if not connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]:
                if self._made_by is not schema.MIGRATIONS:
                    self._first = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
                    self._migrate(self._first, path)
                    self._made_by = schema.MIGRATIONS
                self._first.backup(connection)
                self.copies += 1
        self._migrate(connection, path)


schema.migrate = _NewLedgers()
# What is imported and collected stays to the end; the collector would visit it again and again.
gc.disable()


def _no_gpu(environment: Mapping[str, str]) -> None:
    """What `smallest_gpu` finds where there is no GPU."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark integration tests by their folder."""
    for item in items:
        if Path(item.path).relative_to(REPOSITORY / "tests").parts[0] == "integration":
            item.add_marker(pytest.mark.integration)


def pytest_collection_finish() -> None:
    """Let the collector run for the tests' own objects alone."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    """Start torch's own generator anew: a test draws the same numbers alone, in any order and in any process."""
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(0)  # those of other devices would be asked, too


# A hook, because a fixture that every test has costs each of thousands some tenths of a millisecond.
@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Compute memory budgets as on a machine without GPUs, except in tests of GPUs."""
    real = gpu.smallest_gpu
    if item.get_closest_marker("gpu") is None:
        gpu.smallest_gpu = _no_gpu
    try:
        return (yield)
    finally:
        gpu.smallest_gpu = real


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A temporary folder for Unix sockets: an address has at most 107 bytes, and `tmp_path` may have more."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def vision_processor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokenizer and image processor of a Qwen3-VL checkpoint, without weights."""
    from tests.helpers import tiny_vision

    folder = tmp_path_factory.mktemp("vision")
    tiny_vision.save_processor(folder)
    (folder / "config.json").write_text('{"model_type": "qwen3_vl"}')
    return folder
