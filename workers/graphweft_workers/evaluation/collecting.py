"""Proposes questions for a file: those that users asked, each with rows that may answer it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from graphweft import Client
from graphweft_contracts.memory import SCOPES, MemoryScope
from graphweft_workers.evaluation import form
from graphweft_workers.evaluation.questions import FoundRow, one_line
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.retrieval.empty_turns import only_asks
from graphweft_workers.retrieval.records import MEMORY_LABEL
from graphweft_workers.support.printable import printable

MOST_SCANNED: Final = 5_000
"""The latest memories of users among which questions are looked for."""
_CANDIDATES: Final = 5
_LONGEST: Final = 100
_READ_S: Final = 60.0
_ASKED_OF: Final = ("user_id", "thread_id", "agent_id", "application_id")
"""The scope of a proposal is the first of these that its memory has."""
_ESCAPED: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff]")
"""What JSON may have in a text, and YAML reads otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A question that a user asked, and rows that a search finds for it, best first."""

    question: str
    scope: MemoryScope
    candidates: Sequence[FoundRow]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        candidates = [{"id": row.id, "text": row.text} for row in self.candidates]
        return {"question": self.question, "scope": self.scope.given, "candidates": candidates}

    def lines(self) -> Iterator[str]:
        """Yield the lines of its entry. It is complete when somebody has said what answers it."""
        yield f"  - question: {_quoted(self.question)}"
        for key, field in form.SCOPES.items():
            if value := self.scope.given.get(field):
                yield f"    {key}: {_quoted(value)}"
        yield "    expect:"
        for row in self.candidates:
            yield f"      # - {_quoted(row.id)}  # {printable(one_line(row.text)[:_LONGEST])}"


async def collect(
    client: Client, graph: GraphStore, app: str, given: Mapping[str, str], *, limit: int, budget_ms: int
) -> list[Proposal]:
    """Return up to ``limit`` of the latest questions of users, each text of a scope once.

    ``given`` limits them to a scope. Raises ``GraphUnavailable``; of a question that no responder answers there are no
    candidates.
    """
    within = "".join(f" AND m.{name} = ${name}" for name in given)
    statement = (
        f"MATCH (m:{MEMORY_LABEL}) WHERE m.role = 'user'{within} RETURN m.text, "
        + ", ".join(f"m.{name}" for name in SCOPES)
        + " ORDER BY m.timestamp DESC, m.id LIMIT $scan"
    )
    rows = (await graph.read(app, statement, {**given, "scan": MOST_SCANNED}, timeout_s=_READ_S)).rows
    asked: dict[tuple[str, str, str], None] = {}
    for text, *names in rows:
        known: dict[str, Any] = dict(zip(SCOPES, names, strict=True))
        whose = next((name for name in _ASKED_OF if known[name]), None)
        if whose is not None and isinstance(text, str) and only_asks(text):
            asked.setdefault((one_line(text), whose, str(known[whose])))
    proposals: list[Proposal] = []
    for text, name, value in list(asked)[:limit]:
        scope = MemoryScope(**{name: value})
        reply = await client.search(
            text, memory=scope, top_k=_CANDIDATES + 1, budget_ms=budget_ms, app_id=app
        )  # the question itself may be among them
        found = [
            FoundRow(id=str(row.get("id")), text=str(row.get("text")))
            for row in reply.results
            if row.get("score") and one_line(str(row.get("text"))) != text
        ]
        proposals.append(Proposal(question=text, scope=scope, candidates=found[:_CANDIDATES]))
    return proposals


def file_of(proposals: Sequence[Proposal], app: str) -> str:
    """Return the file of questions, which somebody has to complete."""
    lines = [
        f"# Questions that users of the app {app} asked. Say of each what answers it, and remove the others:",
        "# take the # away before ids that answer it, or write `contains: [words]` or `nothing: true` for `expect:`.",
        "questions:",
        *(line for each in proposals for line in each.lines()),
    ]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(text, ensure_ascii=False))
