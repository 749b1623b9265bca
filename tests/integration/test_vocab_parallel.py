"""A vocabulary that is split over two ranks gives the numbers of the whole one in float64."""

from __future__ import annotations

import pytest

from groundwork.network import find_available_port
from lab.testkit.trainer import on_ranks
from tests.helpers.vocab_ranks import check_split_vocabulary


@pytest.mark.timeout(600)
def test_two_ranks_with_half_the_vocabulary_each() -> None:
    on_ranks(2, check_split_vocabulary, find_available_port())
