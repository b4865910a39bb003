"""Which graphs are from before an erasure or a restatement, and how the bus says so."""

from __future__ import annotations

import json

import pytest

from graphweft_workers.ports.graph_basis import GraphBasis
from graphweft_workers.ports.purges import Purge, Purges

NEEDED = GraphBasis(rules="restated:9", erasures=4)


@pytest.mark.parametrize(
    ("rules", "erasures", "why"),
    [
        ("restated:9", 4, ""),
        ("restated:10", 6, ""),
        ("restated:8", 4, "the past was restated"),
        ("rules:restated:10", 4, "the past was restated"),
        ("", 6, "the past was restated"),
        ("restated:9", 3, "something was erased"),
    ],
)
def test_a_graph_is_older_by_its_restatement_and_its_erasures(rules: str, erasures: int, why: str) -> None:
    found = GraphBasis(rules=rules, erasures=erasures).older_than(NEEDED, "shop")
    assert bool(found) == bool(why)
    assert why in found


def test_what_a_graph_needs_comes_back_from_the_bus() -> None:
    purge = Purge(app_id="shop", needed=NEEDED)
    others = Purge(app_id="shop"), Purge(app_id="shop", partition=0, offset="5")
    assert Purge.decode(purge.encode()) == purge
    assert len({purge.key, *(each.key for each in others)}) == 3  # none replaces another one
    assert Purges(found=[purge, *others], mark=3).needed == {"shop": NEEDED}


def test_earlier_versions_and_later_ones_read_each_others_purges() -> None:
    earlier = {"app": "shop", "partition": None, "offset": ""}
    assert Purge.decode(json.dumps(earlier).encode()) == Purge(app_id="shop")
    body = json.loads(Purge(app_id="shop", needed=NEEDED).encode())
    assert body | earlier == body


@pytest.mark.parametrize("needed", [1, "x", [], {"rules": "", "erasures": "many"}, {"rules": ""}])
def test_other_text_is_no_purge(needed: object) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Purge.decode(json.dumps({"app": "shop", "partition": None, "offset": "", "needed": needed}).encode())
