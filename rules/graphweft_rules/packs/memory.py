"""What the events of memory do to an app's graph.

Order does not decide what remains: events of different chats take effect in any order, at a replay in another one than
at first. So what is erased stays out by its time, facts end each other's validity by their own times, and everything
else is about what came in the same chat, where order holds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from graphweft_contracts import Event
from graphweft_contracts.memory import (
    MEMORY,
    SCOPES,
    MemoryAdd,
    MemoryEmbedded,
    MemoryErase,
    MemoryForget,
    MemorySummarized,
    derived_id,
    memory_id,
)
from graphweft_rules.clock import moments_later, utc_text
from graphweft_rules.cypher import parse
from graphweft_rules.indexes import SearchIndex
from graphweft_rules.model import Place
from graphweft_rules.terms import scope_term, terms
from graphweft_rules.workflow import CompiledMutation

MEMORY_LABEL: Final = "Memory"
SUMMARY: Final = "ConversationSummary"
FACT: Final = "Fact"
PREFERENCE: Final = "Preference"
PROFILE: Final = "UserProfile"

_FILE: Final = "graphweft:memory"
"""In the place of a rule file, where a dead letter or an error says which mutation it is about."""

type _Params = dict[str, Any]
type _Said = Sequence[tuple[str, _Params]]


def _scope(variable: str) -> str:
    return ", ".join(f"{variable}.{name} = ${name}" for name in SCOPES)


# In one query with what it decides about: apart, one of the two could fail, and a memory be passed over in silence.
_WHEN_NOT_ERASED: Final = (
    f"MERGE (u:{PROFILE} {{id: $user_id}}) "
    "SET u.user_id = $user_id, u.erased_before = coalesce(u.erased_before, '') "
    "WITH u WHERE u.erased_before < $recorded "
)
_ADD: Final = (
    "UNWIND $messages AS message "
    f"MERGE (m:{MEMORY_LABEL} {{id: message.id}}) "
    "SET m.text = message.text, m.role = message.role, m.timestamp = message.timestamp, "
    "m.message_id = message.message_id, m.author_name = message.author_name, m.terms = message.terms, "
    f"m.length = message.length, {_scope('m')}, m.scopes = $scopes, "
    "m.chat_id = $chat_id, m.event_id = $event_id, m.recorded = $recorded"
)
_LOOKED_AHEAD: Final = 50
"""Later facts of a key that are looked at for each one, so that a key with many costs little."""
# The facts of one key, each valid until the next one begins. What that comes to does not depend on who came first.
# The same said again in another thread ends a fact too, but not for a search of its own thread (``thread_valid_to``):
# there it holds until something else is said anywhere, or the same again in that thread.
_VALIDITY: Final = (
    f"MATCH (f:{FACT} {{key: key}}) WITH key, f ORDER BY f.valid_from, f.id WITH key, collect(f) AS facts "
    "UNWIND range(0, size(facts) - 1) AS number "
    f"WITH facts[number] AS fact, facts[number + 1 .. number + {_LOOKED_AHEAD + 1}] AS others, "
    f"facts[number + 1] AS later, facts[number + {_LOOKED_AHEAD + 1}] AS beyond "
    "SET fact.valid_to = later.valid_from, fact.thread_valid_to = coalesce(head([other IN others WHERE "
    "other.object <> fact.object OR coalesce(other.thread_id, '') = coalesce(fact.thread_id, '') "
    "| other.valid_from]), beyond.valid_from)"
)
# A preference is as recent as the last time that it was stated, of those that are left.
_STATED: Final = (
    f"MATCH (p)-[e:EXTRACTED_FROM]->(:{SUMMARY}) WITH p, max(e.stated_at) AS stated_at SET p.stated_at = stated_at"
)


def _tie(label: str) -> str:
    """Return how what a summary said is tied to its memories.

    A memory is claimed by one summary at most, so what leads from a summary to its memories is known to be its own.
    """
    return (
        f"MATCH (s:{SUMMARY} {{id: $id}}) UNWIND $sources AS source "
        f"MATCH (x:{label} {{id: source.id}}) MATCH (m:{MEMORY_LABEL} {{id: source.memory_id}})-[:PART_OF]->(s) "
        "MERGE (x)-[:EXTRACTED_FROM]->(m)"
    )


_TEXTS: Final[Mapping[str, tuple[str, str]]] = {
    "add": ("memory.add", _WHEN_NOT_ERASED + _ADD),
    "add_unowned": ("memory.add", _ADD),
    "embed": (
        "memory.embedded",
        f"MATCH (m:{MEMORY_LABEL} {{id: $memory_id, chat_id: $chat_id}}) "
        "SET m.embedding = vecf32($embedding), m.embedding_model = $model",
    ),
    # A memory belongs to the first event of its user's that names it, whatever becomes of that one: an erasure in
    # another chat may come before or after it, and must not decide which summary is made. For the same reason a summary
    # holds memories of one user only, or of none.
    "claim": (
        "memory.summarized",
        f"UNWIND $memory_ids AS memory_id MATCH (m:{MEMORY_LABEL} {{id: memory_id, chat_id: $chat_id}}) "
        "WHERE m.summary_id IS NULL AND coalesce(m.user_id, '') = $owner SET m.summary_id = $id",
    ),
    # Of an erased user some memories are missing, and then there is no summary; it counts as old as its oldest memory,
    # so that an erasure that comes later takes it away just the same.
    "summarize": (
        "memory.summarized",
        f"UNWIND $memory_ids AS memory_id MATCH (m:{MEMORY_LABEL} {{id: memory_id, chat_id: $chat_id}}) "
        "WHERE m.summary_id = $id "
        "WITH collect(m) AS memories, min(m.recorded) AS recorded, min(m.timestamp) AS first, max(m.timestamp) AS last "
        "WHERE size(memories) = $count "
        f"MERGE (s:{SUMMARY} {{id: $id}}) "
        "SET s.text = $text, s.timestamp = last, s.from = first, s.recorded = recorded, s.model = $model, "
        f"s.terms = $terms, s.length = $length, {_scope('s')}, s.scopes = $scopes, "
        "s.chat_id = $chat_id, s.event_id = $event_id "
        "WITH s, memories UNWIND memories AS m MERGE (s)-[:SUMMARIZES]->(m) MERGE (m)-[:PART_OF]->(s)",
    ),
    "facts": (
        "memory.summarized",
        f"MATCH (s:{SUMMARY} {{id: $id}}) UNWIND $facts AS fact MERGE (f:{FACT} {{id: fact.id}}) "
        "SET f.key = fact.key, f.subject = fact.subject, f.predicate = fact.predicate, f.object = fact.object, "
        f"f.text = fact.text, f.valid_from = fact.valid_from, f.terms = fact.terms, f.length = fact.length, "
        f"{_scope('f')}, f.scopes = $scopes "
        "MERGE (f)-[:EXTRACTED_FROM]->(s)",
    ),
    "fact_sources": ("memory.summarized", _tie(FACT)),
    "validity": ("memory.summarized", f"UNWIND $keys AS key {_VALIDITY}"),
    "preferences": (
        "memory.summarized",
        f"MATCH (s:{SUMMARY} {{id: $id}}) MATCH (u:{PROFILE} {{id: $user_id}}) UNWIND $preferences AS stated "
        f"MERGE (p:{PREFERENCE} {{id: stated.id}}) SET p.text = stated.text, p.user_id = $user_id, "
        "p.terms = stated.terms, p.length = stated.length, p.scopes = $scopes "
        "MERGE (u)-[:HAS_PREFERENCE]->(p) MERGE (p)-[e:EXTRACTED_FROM]->(s) SET e.stated_at = stated.stated_at",
    ),
    "preference_times": (
        "memory.summarized",
        f"UNWIND $preferences AS preference MATCH (p:{PREFERENCE} {{id: preference}}) {_STATED}",
    ),
    "preference_sources": ("memory.summarized", _tie(PREFERENCE)),
    # Only in the chat in which they were added are the two in order.
    "forget": (
        "memory.forget",
        f"UNWIND $memory_ids AS memory_id MATCH (m:{MEMORY_LABEL} {{id: memory_id, chat_id: $chat_id}}) "
        "DETACH DELETE m",
    ),
    "mark": (
        "memory.erase",
        f"MERGE (u:{PROFILE} {{id: $user_id}}) SET u.user_id = $user_id, u.erased_before = "
        "CASE WHEN coalesce(u.erased_before, '') < $before THEN $before ELSE u.erased_before END",
    ),
    "erase": (
        "memory.erase",
        f"MATCH (m:{MEMORY_LABEL} {{user_id: $user_id}}) WHERE m.recorded <= $before DETACH DELETE m",
    ),
    "erase_sources": (
        "memory.erase",
        f"MATCH (s:{SUMMARY} {{user_id: $user_id}}) WHERE s.recorded <= $before "
        f"MATCH (s)-[:SUMMARIZES]->(m:{MEMORY_LABEL})<-[e:EXTRACTED_FROM]-() DELETE e",
    ),
    "erase_summaries": (
        "memory.erase",
        f"MATCH (s:{SUMMARY} {{user_id: $user_id}}) WHERE s.recorded <= $before DETACH DELETE s",
    ),
    "erase_facts": (
        "memory.erase",
        f"MATCH (f:{FACT} {{user_id: $user_id}}) WHERE NOT (f)-[:EXTRACTED_FROM]->(:{SUMMARY}) DETACH DELETE f",
    ),
    "erase_preferences": (
        "memory.erase",
        f"MATCH (p:{PREFERENCE} {{user_id: $user_id}}) WHERE NOT (p)-[:EXTRACTED_FROM]->(:{SUMMARY}) DETACH DELETE p",
    ),
    "erase_preference_times": (
        "memory.erase",
        f"MATCH (p:{PREFERENCE} {{user_id: $user_id}}) {_STATED}",
    ),
    "erase_validity": (
        "memory.erase",
        f"MATCH (kept:{FACT} {{user_id: $user_id}}) WITH DISTINCT kept.key AS key {_VALIDITY}",
    ),
}
"""Mutation -> (type of event, Cypher)."""


class MemoryPack:
    """The effects of ``memory.*`` events on memories."""

    types = frozenset(MEMORY)

    def __init__(self) -> None:
        self.mutations = tuple(
            CompiledMutation(
                rule=rule,
                id=id,
                cypher=parse(text, role="mutation"),
                sources=(),
                place=Place(file=_FILE, line=number),
            )
            for number, (id, (rule, text)) in enumerate(_TEXTS.items(), 1)
        )
        self._by_id = {mutation.id: mutation for mutation in self.mutations}
        scoped = {(MEMORY_LABEL, name) for name in (*SCOPES, "id", "chat_id")}
        scoped |= {(other, name) for other in (SUMMARY, FACT) for name in SCOPES} | {(PREFERENCE, "user_id")}
        self.keys = frozenset(scoped).union(*(mutation.cypher.keys for mutation in self.mutations))
        self.indexes = tuple(
            SearchIndex(
                kind="fulltext",
                label=each,
                properties=("terms", "scopes"),
                name=f"graphweft_{each}_terms",
                terms=True,
            )
            for each in (MEMORY_LABEL, SUMMARY, FACT, PREFERENCE)
        )

    def match(self, event: Event) -> Sequence[tuple[CompiledMutation, _Params]]:
        """See ``Pack.match``."""
        say = _SAY.get(event.type)
        if say is None:
            return ()
        return [(self._by_id[id], params) for id, params in say(event)]

    def refusal(self, event: Event) -> str | None:
        """See ``Pack.refusal``: none is refused."""
        return None


def _add(event: Event) -> _Said:
    payload = MemoryAdd.model_validate(event.data)
    messages: list[_Params] = []
    for number, message in enumerate(payload.messages):
        messages.append(
            {
                "id": memory_id(event.source, event.id, number),
                "text": message.text,
                "role": message.role,
                # What was said in one breath keeps its order: it is found by recency, too.
                "timestamp": utc_text(message.time or moments_later(event.time, number)),
                "message_id": message.message_id,
                "author_name": message.author_name,
                **_words(message.searched),
            }
        )
    scopes = _scopes(payload.scope.given)
    params = _common(event, payload) | {"messages": messages, "recorded": utc_text(event.time), "scopes": scopes}
    if payload.user_id is None:
        return [("add_unowned", params)]
    return [("add", params)]


def _embedded(event: Event) -> _Said:
    payload = MemoryEmbedded.model_validate(event.data)
    params = {"memory_id": payload.memory_id, "embedding": list(payload.embedding), "model": payload.model}
    params["chat_id"] = event.chatid
    return [("embed", params)]


def _summarized(event: Event) -> _Said:
    payload = MemorySummarized.model_validate(event.data)
    common = _common(event, payload)
    memory_ids = list(dict.fromkeys(payload.memory_ids))
    # An event that comes again with another content, from a model that was asked twice, is another summary.
    content = json.dumps(event.data, sort_keys=True, ensure_ascii=True)
    id = derived_id(event.source, event.id, "summary", content)
    scopes = _scopes(payload.scope.given)
    said: list[tuple[str, _Params]] = [
        (
            "claim",
            {"id": id, "memory_ids": memory_ids, "chat_id": event.chatid, "owner": payload.user_id or ""},
        ),
        (
            "summarize",
            common
            | _words(payload.summary)
            | {
                "id": id,
                "memory_ids": memory_ids,
                "count": len(memory_ids),
                "text": payload.summary,
                "model": payload.model,
                "scopes": scopes,
            },
        ),
    ]
    # What a user says holds beyond the thread, so a fact ends another one of the same user's wherever that was said.
    # Without a user nothing says that two threads are about the same person.
    owner = [common[name] or "" for name in SCOPES if name != "thread_id" or payload.user_id is None]
    facts: list[_Params] = []
    for fact in payload.facts:
        key = derived_id("fact", *owner, fact.subject.casefold(), fact.predicate.casefold())
        valid_from = _text(fact.valid_from, event.time)
        text = fact.text or f"{fact.subject} {fact.predicate} {fact.object}"
        thread_id = payload.thread_id or ""
        facts.append(
            {
                "id": derived_id(key, thread_id, fact.subject, fact.predicate, fact.object, valid_from, fact.text),
                "key": key,
                "subject": fact.subject,
                "predicate": fact.predicate,
                "object": fact.object,
                "text": text,
                **_words(text),
                "valid_from": valid_from,
                "memory_ids": list(dict.fromkeys(fact.memory_ids)),
            }
        )
    if facts:
        said.append(("facts", {**{name: common[name] for name in SCOPES}, "scopes": scopes, "id": id, "facts": facts}))
        said.append(("fact_sources", _sources(id, facts)))
        said.append(("validity", {"keys": list(dict.fromkeys(fact["key"] for fact in facts))}))
    if payload.preferences and payload.user_id is not None:
        preferences = [
            {
                "id": derived_id("preference", payload.user_id, preference.text),
                "text": preference.text,
                **_words(preference.text),
                "stated_at": _text(preference.stated_at, event.time),
                "memory_ids": list(dict.fromkeys(preference.memory_ids)),
            }
            for preference in payload.preferences
        ]
        # A preference is its user's, and stands once for all threads and agents: the summaries say where it was stated.
        owned = {"id": id, "user_id": payload.user_id, "scopes": _scopes({"user_id": payload.user_id})}
        said.append(("preferences", {**owned, "preferences": preferences}))
        said.append(("preference_times", {"preferences": list(dict.fromkeys(each["id"] for each in preferences))}))
        said.append(("preference_sources", _sources(id, preferences)))
    return said


def _forget(event: Event) -> _Said:
    payload = MemoryForget.model_validate(event.data)
    return [("forget", {"memory_ids": list(dict.fromkeys(payload.memory_ids)), "chat_id": event.chatid})]


def _erase(event: Event) -> _Said:
    payload = MemoryErase.model_validate(event.data)
    user = {"user_id": payload.user_id}
    # What is still to come is nobody's to erase now.
    until = user | {"before": utc_text(min(payload.before or event.time, event.time))}
    return [
        ("mark", until),
        ("erase", until),
        ("erase_sources", until),
        ("erase_summaries", until),
        ("erase_facts", user),
        ("erase_preferences", user),
        ("erase_preference_times", user),
        ("erase_validity", user),
    ]


_SAY: Final[Mapping[str, Callable[[Event], _Said]]] = {
    "memory.add": _add,
    "memory.embedded": _embedded,
    "memory.summarized": _summarized,
    "memory.forget": _forget,
    "memory.erase": _erase,
}


def _common(event: Event, payload: MemoryAdd | MemorySummarized) -> _Params:
    scope = {name: getattr(payload, name) for name in SCOPES}
    return scope | {"chat_id": event.chatid, "event_id": event.id}


def _words(text: str) -> _Params:
    """Return the terms of a text as the graph has them."""
    found = terms(text)
    return {"terms": " ".join(found), "length": len(found)}


def _scopes(given: Mapping[str, str]) -> str:
    return " ".join(scope_term(name, value) for name, value in given.items())


def _sources(id: str, extracted: Sequence[_Params]) -> _Params:
    return {
        "id": id,
        "sources": [{"id": each["id"], "memory_id": memory} for each in extracted for memory in each["memory_ids"]],
    }


def _text(time: datetime | None, otherwise: datetime) -> str:
    return utc_text(time or otherwise)
