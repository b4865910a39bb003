"""Asks questions as agents do: through the rules of a workflow, and by a search of the memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from graphweft import Client
from graphweft_contracts import ContextReply, InvalidSettings, NotRunning
from graphweft_contracts.prompt_text import harmless
from graphweft_contracts.search import IndexType
from graphweft_rules.files.findings import Finding, RulesError
from graphweft_workers.evaluation.measures import DEPTHS, Score, recall_of, share_found
from graphweft_workers.evaluation.questions import Evidence, FoundRow, MemoryQuestion, has_any
from graphweft_workers.evaluation.shown_text import ShownText
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.retrieval.records import MEMORY_LABEL

Way = Literal["context", "recall"]
CONTEXT: Final[Way] = "context"
RECALL: Final[Way] = "recall"
_ROWS: Final = 50
"""Rows of which a text of ``recall`` is made, as in the default rules."""
_CHAT: Final = "eval"
"""The chat of a question that names none."""
_READ_S: Final = 60.0
_NOT_FAULTS: Final = frozenset({"token_budget"})
"""Reasons why a block is missing that are an answer: an empty one."""
_NOBODY: Final = frozenset({"timeout", "bus_unavailable", "overloaded"})


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionSettings:
    """How questions are asked."""

    app: str
    workflow: str
    agent: str
    budget_ms: int
    max_tokens: int
    """The limit of a text of ``recall``; rules have limits of their own."""
    index_type: IndexType | None = None
    """How ``recall`` searches; None: by all signals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionScores:
    """A question with the score of each way of asking."""

    question: MemoryQuestion
    scores: Mapping[Way, Score]


async def evidence_of(questions: Sequence[MemoryQuestion], graph: GraphStore | None, app: str) -> list[Evidence]:
    """Return the evidence of each question. ``graph`` is needed for messages: their texts are read there.

    Raises ``RulesError`` with a finding for each message that is not in the memory of the question's scope.
    """
    wanted: dict[tuple[tuple[str, str], ...], set[str]] = {}
    for question in questions:
        wanted.setdefault(_key(question), set()).update(each.id for each in question.expect)
    known: dict[tuple[tuple[str, str], ...], Mapping[str, tuple[str, str]]] = {}
    for scope, ids in wanted.items():
        known[scope] = await _memories(graph, app, dict(scope), ids) if graph is not None and ids else {}
    findings: list[Finding] = []
    found: list[Evidence] = []
    for question in questions:
        texts: dict[str, str] = {}
        for each in question.expect:
            memory = known[_key(question)].get(each.id)
            if memory is None:
                whose = ", ".join(f"{name} {value!r}" for name, value in question.scope.given.items())
                message = (
                    f"the message {each.id!r} is not in the memory of {whose} in the app {app!r}: correct the id, or "
                    "write what it says under 'contains' if it was summarized and forgotten"
                )
                findings.append(Finding(level="error", code="unknown-message", message=message, place=each.place))
            else:
                texts[memory[0]] = harmless(memory[1])
        found.append(Evidence.of_messages(texts) if question.expect else Evidence.of_words(question.contains))
    if findings:
        raise RulesError(findings)
    return found


async def ask(
    client: Client, questions: Sequence[MemoryQuestion], evidence: Sequence[Evidence], how: QuestionSettings
) -> AsyncGenerator[QuestionScores]:
    """Yield each question with its scores, one after the other.

    Raises ``NotRunning`` if nobody answers the first one, and ``InvalidSettings`` if no rules answer it.
    """
    for number, (question, known) in enumerate(zip(questions, evidence, strict=True)):
        searched = await _search(client, question, how, top_k=DEPTHS[-1], max_tokens=None)
        if number == 0 and searched.reason in _NOBODY:
            raise NotRunning(
                f"no responder answers ({searched.reason}: {searched.detail}): start `graphweft up`, or "
                "`graphweft run injection`; or give more time with --budget-ms"
            )
        shown = await _search(client, question, how, top_k=_ROWS, max_tokens=how.max_tokens)
        given = await _context(client, question, how)
        if number == 0 and given.reason == "no_rules":
            raise InvalidSettings(
                f"no rules answer the agent {how.agent!r} in the workflow {how.workflow!r} ({given.detail}): name "
                "others with --workflow and --agent"
            )
        rows = [FoundRow(id=str(row.get("id")), text=str(row.get("text"))) for row in searched.results]
        recalled = replace(_shown(question, known, shown), ms=searched.elapsed_ms)
        if not question.nothing:
            held = [known.in_row(row) for row in rows]
            recalled = replace(recalled, recall=recall_of(known.all, held), stale=_first_is_stale(question, rows, held))
        recalled = replace(recalled, fault=recalled.fault or _fault(searched))
        yield QuestionScores(question=question, scores={CONTEXT: _shown(question, known, given), RECALL: recalled})


def _shown(question: MemoryQuestion, evidence: Evidence, reply: ContextReply) -> Score:
    """Return what the text of a reply says. Its rows are in order of time, so stale is what is there alone."""
    text = ShownText(reply.text)
    score = Score(tokens=reply.tokens, labels=text.labels, ms=reply.elapsed_ms, fault=_fault(reply))
    if question.nothing:
        return replace(score, nothing=text.tells_nothing and not score.fault)
    held = [evidence.in_line(line) for line in text.rows]
    is_stale = has_any(question.stale)
    stale = not any(held) and any(map(is_stale, text.rows)) if question.stale else None
    return replace(score, block=share_found(evidence.all, held), empty=not reply.text, stale=stale)


def _first_is_stale(question: MemoryQuestion, rows: Sequence[FoundRow], held: Sequence[frozenset[int]]) -> bool | None:
    """Return whether a row with a stale word comes before each row with evidence; None without stale words."""
    if not question.stale:
        return None
    is_stale = has_any(question.stale)
    return next((not items for row, items in zip(rows, held, strict=True) if items or is_stale(row.text)), False)


def _fault(reply: ContextReply) -> str:
    if reply.reason is not None:
        return "" if reply.reason in _NOT_FAULTS else reply.reason
    return next((each.reason for each in reply.missing if each.reason not in _NOT_FAULTS), "")


async def _search(
    client: Client, question: MemoryQuestion, how: QuestionSettings, *, top_k: int, max_tokens: int | None
) -> ContextReply:
    return await client.search(
        question.text, memory=question.scope, index_type=how.index_type, top_k=top_k, max_tokens=max_tokens,
        budget_ms=how.budget_ms, app_id=how.app,
    )  # fmt: skip


async def _context(client: Client, question: MemoryQuestion, how: QuestionSettings) -> ContextReply:
    scope = question.scope
    asked: dict[str, Any] = {"messages": [{"role": "user", "text": question.text}]}
    return await client.context(
        agent=scope.agent_id or how.agent, chat_id=scope.thread_id or _CHAT, app_id=how.app, workflow=how.workflow,
        user_id=scope.user_id, context=asked, budget_ms=how.budget_ms,
    )  # fmt: skip


def _key(question: MemoryQuestion) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(question.scope.given.items()))


async def _memories(
    graph: GraphStore, app: str, scope: Mapping[str, str], ids: set[str]
) -> Mapping[str, tuple[str, str]]:
    """Return id and text of memories by the ids that name them; the latest one of several with a message's id."""
    within = " AND ".join(f"m.{name} = ${name}" for name in scope)
    statement = (
        f"MATCH (m:{MEMORY_LABEL}) WHERE {within} AND (m.message_id IN $ids OR m.id IN $ids) "
        "RETURN m.message_id AS message, m.id AS id, m.text AS text ORDER BY m.timestamp, m.id"
    )
    rows = (await graph.read(app, statement, {**scope, "ids": sorted(ids)}, timeout_s=_READ_S)).rows
    found = {str(message): (str(id), str(text)) for message, id, text in rows if message is not None}
    return found | {str(id): (str(id), str(text)) for _, id, text in rows}
