"""The names of sessions tell their owners apart, whatever a client sends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.gateway.auth import Client
from openclaw.owners import LOCAL, owner_of, owns, prefixes, root, split_id, stored_id

OWNERS = st.sampled_from([LOCAL, "alice", "alice/tests", "alice/tests/one", "bob", "a", "a.b"])
IDS = st.text(min_size=1, max_size=12, alphabet="@:/ab.alice") | st.text(min_size=1, max_size=20)


@given(OWNERS, IDS, OWNERS, IDS)
def test_two_owners_never_share_a_stored_id(one: str, mine: str, other: str, theirs: str) -> None:
    assert (stored_id(one, mine) == stored_id(other, theirs)) == ((one, mine) == (other, theirs))


@given(OWNERS, IDS)
def test_a_stored_id_gives_back_owner_and_id(owner: str, session_id: str) -> None:
    stored = stored_id(owner, session_id)
    assert split_id(stored) == (owner, session_id)
    assert owner_of(stored) == owner


def test_a_single_user_server_shows_the_ids_that_clients_sent() -> None:
    assert stored_id(LOCAL, "agent:main:work") == "agent:main:work"


@pytest.mark.parametrize(
    ("owner", "other", "expected"),
    [
        ("alice", "alice", True),
        ("alice", "alice/tests", True),
        ("alice/tests", "alice", False),
        ("alice/tests", "alice/other", False),
        ("alice", "alice2", False),
        (LOCAL, "alice", False),
        ("alice", LOCAL, False),
        (LOCAL, LOCAL, True),
    ],
)
def test_a_parent_owns_what_its_child_owns(owner: str, other: str, expected: bool) -> None:
    assert owns(owner, other) is expected


def test_the_root_is_the_oldest_parent() -> None:
    assert root("alice/tests/one") == "alice"
    assert root(LOCAL) == LOCAL


@given(OWNERS, OWNERS, IDS, IDS)
def test_no_id_in_a_route_means_a_session_that_the_client_does_not_reach(
    owner: str, other: str, theirs: str, written: str
) -> None:
    client = Client("any", owner)
    for session_id in (written, theirs, stored_id(other, theirs)):
        meant = client.meant(session_id)
        assert meant[0] == stored_id(owner, session_id)
        assert all(owns(owner, owner_of(stored)) for stored in meant)
    admin = Client("any", owner, admin=True)
    if other != LOCAL:
        assert stored_id(other, theirs) in admin.meant(stored_id(other, theirs))
    else:
        assert stored_id(LOCAL, theirs) in admin.meant(f"@:{theirs}")


@given(OWNERS.filter(lambda owner: owner != LOCAL), OWNERS, IDS)
def test_the_prefixes_of_an_owner_are_those_of_its_sessions(owner: str, other: str, session_id: str) -> None:
    assert stored_id(other, session_id).startswith(prefixes(owner)) == owns(owner, other)
