"""The published cases of transitions, against our own memories.

Of a peer only what everybody passes is asked here: it says that its adapter works. The bench
`transitions` asks everybody everything.
"""

from functools import partial

import pytest
from transition_cases import CASES, NotOffered, fault
from transition_memories import our_dataset, our_store
from transition_peers import PEERS, PeerAbsent, opened


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_in_the_store_of_a_run(case):
    assert fault(case, our_store) == ""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_in_a_dataset(case):
    try:
        assert fault(case, our_dataset) == ""
    except NotOffered as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_a_peer_gives_an_ordinary_step(peer):
    try:
        assert fault(CASES[0], partial(opened, peer)) == ""
    except PeerAbsent as reason:
        pytest.skip(str(reason))
