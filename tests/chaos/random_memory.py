"""Random events of memory among those of random rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from tests.chaos.random_rules import Example, examples

from graphweft_contracts.memory import memory_id

__all__ = ("memory_examples",)

_SOURCE = "/test"
_KINDS = ["add"] * 5 + ["embedded"] * 2 + ["summarized"] * 3 + ["forget", "erase", "rule", "rule"]
_TEXTS = ["I like tea", "tea", "ü\n'\"\\`", "I moved to Oslo", "the"]
_SCOPES: list[dict[str, str]] = [
    {"user_id": "u1"}, {"user_id": "u1", "thread_id": "t"}, {"user_id": "u2", "agent_id": "g"}, {"thread_id": "t"},
]  # fmt: skip


@st.composite
def memory_examples(draw: DrawFn, *, events: int) -> Example:
    """Return a strategy for examples in which most of at most that many events are of memory; rules see all of them."""
    base = draw(examples(events=10))
    rules = [(sorted({*types, "memory.*"}) if draw(st.booleans()) else types, made) for types, made in base.rules]
    found: list[tuple[str, dict[str, Any], int]] = []
    added: list[tuple[str, int]] = []  # id, chat
    ruled = iter(base.events)
    for number in range(1, draw(st.integers(2, events)) + 1):
        kind, chat = draw(st.sampled_from(_KINDS)), draw(st.integers(0, 2))
        scope = draw(st.sampled_from(_SCOPES))
        # Mostly of the same chat, where order holds.
        near = [id for id, where in added if where == chat] or [id for id, _ in added] or ["unknown"]
        some = st.lists(st.sampled_from(near), min_size=1, max_size=3)
        match kind:
            case "add":
                texts = draw(st.lists(st.sampled_from(_TEXTS), min_size=1, max_size=3))
                said = [{"role": "user", "text": text} for text in texts]
                found.append(("memory.add", {"messages": said, **scope}, chat))
                added += [(memory_id(_SOURCE, f"e{number}", place), chat) for place in range(len(texts))]
            case "embedded":
                vector = draw(st.sampled_from([[1.0, 0.0], [0.6, -0.8], [0.1, 0.2]]))
                found.append(("memory.embedded", {"memory_id": draw(some)[0], "model": "m", "embedding": vector}, chat))
            case "summarized":
                found.append(("memory.summarized", {**_summary(draw, draw(some)), **scope}, chat))
            case "forget":
                found.append(("memory.forget", {"memory_ids": draw(some)}, chat))
            case "erase":
                found.append(("memory.erase", {"user_id": draw(st.sampled_from(["u1", "u2"]))}, chat))
            case _:
                event = next(ruled, None)
                found.append(event or ("order.paid", {}, chat))
    return replace(base, rules=rules, events=found)


def _summary(draw: DrawFn, ids: list[str]) -> dict[str, Any]:
    place = st.sampled_from(["Oslo", "Rome", "Bonn"])
    since = st.sampled_from([None, "2020-01-01T00:00:00Z", "2021-01-01T00:00:00Z"])
    facts = [
        {"subject": "Ann", "predicate": "lives in", "object": draw(place), "valid_from": draw(since), "memory_ids": ids}
        for _ in range(draw(st.integers(0, 2)))
    ]
    preferences = [{"text": "likes tea", "memory_ids": ids}] if draw(st.booleans()) else []
    return {"summary": "s", "memory_ids": ids, "model": "m", "facts": facts, "preferences": preferences}
