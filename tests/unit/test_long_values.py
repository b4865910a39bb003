"""Which values are matched and packed in a thread, and what others do meanwhile."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.services.virtual_time import VIRTUAL

from graphweft_contracts import ContextReply, ContextRequest, GraphUnavailable
from graphweft_rules import RuleSet
from graphweft_rules.matching.conditions import Condition, Verdict
from graphweft_rules.matching.parameters import Scope
from graphweft_workers.drivers.falkordb.literals import header
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.injection.pipeline import ContextPipeline
from graphweft_workers.text.long_values import are_long


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


RULE = (
    "- name: r{number}\n  agents: ['*']\n  condition: $context.note == 'no'\n  queries:\n"
    "  - {{id: q, inject_as: n, cypher: RETURN 1}}\n"
)


async def answered(context: dict[str, Any], folder: Path, rules: int) -> ContextReply:
    """Answer a request for a workflow with some rules of which none applies."""
    (folder / "W").mkdir()
    text = "injection_rules:\n" + "".join(RULE.format(number=number) for number in range(rules))
    (folder / "W/graph_injection.yaml").write_text(text)
    store = FalkorDBStore("redis://127.0.0.1:1")  # never asked, because no rule applies
    answers = ContextPipeline(RuleSet.load(folder), store, clock=VIRTUAL)
    deadline = int(VIRTUAL.now().timestamp() * 1_000) + 60_000
    asked = ContextRequest(
        id="r", app_id="a", chat_id="c", workflow="W", agent="A", context=context, deadline_ms=deadline
    )
    found = await answers.answer(asked)
    await answers.aclose()
    await store.aclose()
    return found


@pytest.mark.parametrize(("context", "aside"), [({"note": "short"}, False), ({"notes": ["long"] * 400}, True)])
async def test_a_long_context_is_matched_in_a_thread(
    context: dict[str, Any], aside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    whole = RuleSet.request_steps

    def matching(rules: RuleSet, *given: Any) -> Any:
        threads.append(threading.current_thread())
        return (yield from whole(rules, *given))

    monkeypatch.setattr(RuleSet, "request_steps", matching)
    found = await answered(context, tmp_path, 1)
    assert (found.blocks, found.reason) == ((), None)
    assert [thread is threading.current_thread() for thread in threads] == [not aside]


async def test_others_run_between_the_rules_of_a_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[int] = []
    evaluate = Condition.evaluate

    def slow(condition: Condition, scope: Scope) -> Verdict:
        VIRTUAL.advance(0.01)
        turns.append(turn)
        return evaluate(condition, scope)

    monkeypatch.setattr(Condition, "evaluate", slow)
    turn = 0
    answer = asyncio.create_task(answered({"note": "short"}, tmp_path, 20))
    while not answer.done():
        await VIRTUAL.sleep(0.001)
        turn += 1
    assert (await answer).reason is None
    assert len(turns) == 20
    assert len(set(turns)) >= 19  # none in the turn of another one; only before the second one nobody rests


@pytest.mark.parametrize(("value", "aside"), [([1] * 100, False), ([1] * 10_000, True)])
async def test_long_parameters_become_text_in_a_thread(
    value: list[int], aside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def noted(params: dict[str, Any]) -> str:
        threads.append(threading.current_thread())
        return header(params)

    monkeypatch.setattr("graphweft_workers.drivers.falkordb.store.header", noted)
    store = FalkorDBStore("redis://127.0.0.1:1")
    with pytest.raises(GraphUnavailable):
        await store.read("a", "RETURN $v", {"v": value}, timeout_s=5)
    await store.aclose()
    assert [thread is threading.current_thread() for thread in threads] == [not aside]
