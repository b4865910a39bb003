"""Which values are matched and packed in a thread."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from tests.services.virtual_time import VIRTUAL

from graphweft_contracts import ContextRequest
from graphweft_rules import RuleSet
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.injection import pipeline
from graphweft_workers.injection.long_values import are_long
from graphweft_workers.injection.match import match_request


@pytest.mark.parametrize(
    ("values", "long"),
    [
        ([], False),
        (["a" * 100], False),
        (["a" * 101], True),
        ([[1] * 99], False),
        ([[1] * 100], True),
        ([{"k" * 60: "v" * 60}], True),
        ([[[["a" * 50]]], {"b": ["c" * 60]}], True),
        ([None, True, 1.5, {"a": {"b": ["c"]}}], False),
    ],
)
def test_long_values(values: list[Any], long: bool) -> None:
    assert are_long(values, 100) is long


def test_no_more_is_looked_at_than_needed() -> None:
    def items() -> Any:
        yield from ["a" * 60, "b" * 60]
        raise AssertionError

    assert are_long(items(), 100)


@pytest.mark.parametrize(("context", "aside"), [({"note": "short"}, False), ({"notes": ["long"] * 400}, True)])
async def test_a_long_context_is_matched_in_a_thread(
    context: dict[str, Any], aside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def matching(*given: Any) -> Any:
        threads.append(threading.current_thread())
        return match_request(*given)

    monkeypatch.setattr(pipeline, "match_request", matching)
    (tmp_path / "W").mkdir()
    (tmp_path / "W/graph_injection.yaml").write_text(
        "injection_rules:\n- name: r\n  agents: ['*']\n  condition: $context.note == 'no'\n  queries:\n"
        "  - {id: q, inject_as: n, cypher: RETURN 1}\n"
    )
    store = FalkorDBStore("redis://127.0.0.1:1")  # never asked, because no rule applies
    answers = pipeline.ContextPipeline(RuleSet.load(tmp_path), store, clock=VIRTUAL)
    deadline = int(VIRTUAL.now().timestamp() * 1_000) + 60_000
    asked = ContextRequest(
        id="r", app_id="a", chat_id="c", workflow="W", agent="A", context=context, deadline_ms=deadline
    )
    found = await answers.answer(asked)
    await answers.aclose()
    await store.aclose()
    assert (found.blocks, found.reason) == ((), None)
    assert [thread is threading.current_thread() for thread in threads] == [not aside]
