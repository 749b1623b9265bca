"""Fixtures of tiny checkpoints, for the conftest of all tests and for that of the tests on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_random_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 checkpoint with random weights, untied embeddings."""
    from lab.testkit import tiny_random

    return tiny_random.build(tmp_path_factory.mktemp("model") / "random")


@pytest.fixture(scope="session")
def tiny_random_tied_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 checkpoint with random weights, embeddings tied to the LM head."""
    from lab.testkit import tiny_random

    return tiny_random.build(tmp_path_factory.mktemp("model") / "tied", seed=1, tie_word_embeddings=True)
