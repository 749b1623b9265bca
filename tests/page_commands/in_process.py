"""Run a program of the repository in this process, as a Python of its own would start it.

The process keeps its imports, so that most programs take a tenth of a second. Everything else that a start sets is
put back: arguments, folder, environment, import path, signal handlers, and modules that the page brought.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import runpy
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

from _pytest.assertion.rewrite import AssertionRewritingHook

from slime.utils.misc import load_function
from tests.page_commands.blocks import ROOT
from tests.page_commands.shell import Call

TEST_SECONDS = 240
STDIN = "Hello?\n"
"""What a reader types into a program that asks, unless the command pipes something into it."""


class _Parsed(BaseException):
    """The parser has accepted the words."""


def run_call(call: Call, stage: Path, *, only_parse: bool = False) -> tuple[int, str]:
    """Run a recorded call of Python and return its exit code and what it printed.

    Args:
        call: the call.
        stage: folder whose modules are forgotten afterwards.
        only_parse: stop once ``argparse`` has accepted the words.
    """
    if call.words[:2] == ("-m", "pytest"):
        return _pytest(call)
    printed = io.StringIO()
    with _started(call, stage), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            with mock.patch.object(argparse.ArgumentParser, "__init__", _init_to_stop) if only_parse else _nothing():
                code = _run(list(call.words))
            if only_parse:
                return 1, f"{printed.getvalue()}the program did not parse its words"
        except _Parsed:
            return 0, printed.getvalue()
    return code, printed.getvalue()


_init = argparse.ArgumentParser.__init__
_nothing = contextlib.nullcontext


def _init_to_stop(self: argparse.ArgumentParser, *args: Any, **settings: Any) -> None:
    """Make a parser, of any subclass, that stops the program once its words are accepted."""
    _init(self, *args, **settings)

    def parse_args(args: Sequence[str] | None = None, namespace: Any = None) -> NoReturn:
        type(self).parse_args(self, args, namespace)
        raise _Parsed

    self.parse_args = parse_args


def _run(words: list[str]) -> int:
    """Run ``-m MODULE WORDS`` or ``FILE WORDS``; return the exit code."""
    try:
        if words[0] == "-m":
            sys.argv = words[1:]
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", r".* found in sys\.modules after import", RuntimeWarning)
                runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = words
            sys.path.insert(0, str(Path(words[0]).resolve().parent))
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code)
            return 1
        return end.code or 0
    except Exception:  # noqa: BLE001 - as Python itself ends a program
        traceback.print_exc()
        return 1
    return 0


def _pytest(call: Call) -> tuple[int, str]:
    """Run the tests of the repository in a process of their own."""
    brought = os.pathsep.join(str(Path(call.folder, each)) for each in _import_path(call))
    ended = subprocess.run(
        [sys.executable, *call.words, "-q", "-p", "no:xdist", "-p", "no:cacheprovider"],
        cwd=ROOT,
        env={**call.environment, "PYTHONPATH": brought},
        capture_output=True,
        text=True,
        timeout=TEST_SECONDS,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


def _import_path(call: Call) -> list[str]:
    return [each for each in call.environment.get("PYTHONPATH", "").split(os.pathsep) if each]


@contextlib.contextmanager
def _started(call: Call, stage: Path) -> Iterator[None]:
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)
    handlers = {number: signal.getsignal(number) for number in signals}
    folder, words, path, modules = os.getcwd(), sys.argv, sys.path[:], set(sys.modules)
    # pytest's own finder knows no `-m`; it claims every module that is called test_*.
    finders = [finder for finder in sys.meta_path if not isinstance(finder, AssertionRewritingHook)]
    with (
        mock.patch.dict(os.environ, call.environment, clear=True),
        mock.patch.object(sys, "meta_path", finders),
        mock.patch.object(sys, "stdin", io.StringIO(call.typed or STDIN)),
    ):
        os.chdir(call.folder)
        sys.path[:0] = [call.folder, *(str(Path(each).absolute()) for each in _import_path(call))]
        try:
            yield
        finally:
            os.chdir(folder)
            sys.argv, sys.path[:] = words, path
            for name in set(sys.modules) - modules:
                if str(getattr(sys.modules[name], "__file__", "")).startswith(str(stage)):
                    del sys.modules[name]
            load_function.cache_clear()
            for number, handler in handlers.items():
                signal.signal(number, handler)
