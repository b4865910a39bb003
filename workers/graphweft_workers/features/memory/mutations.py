"""The mutations of ``memory.*`` events.

Events of different chats may apply in any order, and a replay may choose another one, so the result must not depend on
it: an erasure goes by the order within its partition and by the log's time between partitions (``erasing``), facts end
each other's validity by their own times, and everything else touches data of one chat only, where order is kept.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast

from graphweft_contracts import Event, InvalidEvent
from graphweft_contracts.memory import (
    MEMORY,
    SCOPES,
    MemoryAdd,
    MemoryEmbedded,
    MemoryErase,
    MemoryForget,
    MemoryMessage,
    MemorySummarized,
    MemoryUpdate,
    StatementJudged,
    StatementUnjudged,
    derived_id,
    memory_id,
    metadata_terms,
    version_of,
)
from graphweft_rules.matching.clock import moments_later, utc_text
from graphweft_rules.matching.mutation import CompiledMutation
from graphweft_rules.matching.pack import LogTime
from graphweft_workers.features.declarations import Declarations, shared_terms, stored_terms, terms_indexes
from graphweft_workers.features.edge_rules import NO_RULES, EdgeRule, ends_of
from graphweft_workers.features.erasing import IS_ERASED, MARKS, NOT_ERASED, erasure_of, logged_params
from graphweft_workers.features.memory.claim_ends import (
    ENDED_BY,
    LOOKED_AHEAD,
    OF_ENDED,
    OF_KEYS,
    ClaimDependents,
    claim_ends,
    named_ends,
)
from graphweft_workers.features.predicates import key_of
from graphweft_workers.retrieval.profile import PROFILE_KEY, profile_key
from graphweft_workers.retrieval.records import (
    FACT,
    JUDGED,
    MEMORY_LABEL,
    PREFERENCE,
    PROFILE,
    STATEMENT,
    SUMMARY,
    VERSION,
)
from graphweft_workers.retrieval.scope_marks import ADDING, BY_SCOPE, EMBED, ERASING, mark_params, marking
from graphweft_workers.retrieval.stated_time import stated_time
from graphweft_workers.retrieval.topics import predicates_of
from graphweft_workers.text.terms import EventTerms, name_key, scope_term

if TYPE_CHECKING:
    from graphweft_workers.features.memory.claims import Claim, UserStatement

_CLAIMS: Final = "graphweft_workers.features.memory.claims"
_FILE: Final = "graphweft:memory"
"""Stands for the rule file where errors name a mutation."""

type _Params = dict[str, Any]
type _Said = Sequence[tuple[str, _Params]]
type _Read = tuple[Sequence[tuple[CompiledMutation, _Params]], str | None]


def _scope(variable: str) -> str:
    return ", ".join(f"{variable}.{name} = ${name}" for name in SCOPES)


# One query: if the check were apart and failed, a memory would be lost silently.
_WHEN_NOT_ERASED: Final = f"MERGE (u:{PROFILE} {{id: $user_id}}) SET u.user_id = $user_id WITH u WHERE {NOT_ERASED} "
# A producer chooses the event's source and id, from which the id derives. So a memory is one by its chat and scope too:
# an event of another chat or user with the same source and id is another memory.
_ADD: Final = (
    "UNWIND $messages AS message "
    f"MERGE (m:{MEMORY_LABEL} {{id: message.id, chat_id: $chat_id, scopes: $scopes}}) "
    "SET m.text = message.text, m.role = message.role, m.timestamp = message.timestamp, "
    "m.message_id = message.message_id, m.author_name = message.author_name, m.terms = message.terms, "
    f"m.length = message.length, m.unsearched = message.unsearched, m.stated = message.stated, {_scope('m')}, "
    "m.tags = message.tags, m.metadata = message.metadata, m.metadata_terms = message.metadata_terms, "
    "m.expires_at = message.expires_at, m.holds_from = null, "
    "m.valid_from = null, m.version = null, "  # a message that is said again says what it said
    "m.event_id = $event_id, m.recorded = $recorded, m.partition = $partition"
)
# What it said before becomes a version that has ended. The version counts as old as the memory, so an erasure reaches
# both, in whatever order it and the update apply.
_KEPT: Final = (
    "text", "role", "message_id", "author_name", "terms", "length", "unsearched", "valid_from", "chat_id",
    "recorded", "partition", *SCOPES,
)  # fmt: skip
_UPDATED: Final = f"MATCH (m:{MEMORY_LABEL} {{id: $memory_id, chat_id: $chat_id}}) WHERE "
_KEEP: Final = (
    f"MERGE (v:{VERSION} {{id: $version, scopes: m.scopes}}) SET v.memory_id = m.id, "
    "v.timestamp = coalesce(m.holds_from, m.timestamp), "
    "v.valid_to = CASE WHEN m.expires_at < $at THEN m.expires_at ELSE $at END, "
    f"{', '.join(f'v.{name} = m.{name}' for name in _KEPT)} "
)
_UPDATE: Final = (
    f"{_UPDATED}coalesce(m.version, '') <> $version {_KEEP}"
    "SET m.text = $text, m.author_name = coalesce($author_name, m.author_name), m.timestamp = $at, m.valid_from = $at, "
    "m.holds_from = null, "
    "m.version = $version, m.terms = $terms, m.length = $length, m.unsearched = $unsearched, m.stated = null, "
    "m.embedding = null, m.embedding_model = null, m.embedding_size = null"
)
# What has ended and holds again did not hold in between. A memory that an end changes before it ends held all the time.
_RENEW: Final = f"{_UPDATED}m.expires_at <= $at {_KEEP}SET m.holds_from = $at"
_END: Final = (
    f"MATCH (m:{MEMORY_LABEL} {{id: $memory_id, chat_id: $chat_id}}) SET m.expires_at = $expires_at, "
    "m.stated = CASE WHEN $expires_at IS NULL THEN m.stated ELSE null END"
)
_LABEL: Final = (
    f"MATCH (m:{MEMORY_LABEL} {{id: $memory_id, chat_id: $chat_id}}) "
    "SET m.tags = coalesce($tags, m.tags), m.metadata = coalesce($metadata, m.metadata), "
    "m.metadata_terms = coalesce($metadata_terms, m.metadata_terms), m.pinned = coalesce($pinned, m.pinned)"
)
# A fact of a key is valid until the next one begins, in whatever order they arrive. If another thread repeats a fact,
# the first one stays valid in its own thread (``thread_valid_to``), until any thread states another object.
# A new fact does not fit to its neighbours, so parts of so many facts in which all fit are passed over. Where one is
# erased, its neighbours may fit, if they begin at one time.
_FITS: Final = "coalesce(facts[at + place].valid_to, '') = coalesce(facts[at + place + 1].valid_from, '')"


def _validity(parts: str) -> str:
    """Return the query that sets the validity of the facts of ``key``; ``parts`` is the condition of a part ``at``."""
    return (
        f"MATCH (f:{FACT} {{key: key}}) WITH key, f ORDER BY f.valid_from, f.id WITH key, collect(f) AS facts "
        f"UNWIND [at IN range(0, size(facts) - 1, {LOOKED_AHEAD}){parts} "
        f"| facts[at .. at + {2 * LOOKED_AHEAD + 2}]] AS part "
        "WITH part, [each IN part | [each.object, coalesce(each.thread_id, ''), each.valid_from]] AS said "
        f"UNWIND range(0, size(part) - 1) AS number WITH part, said, number WHERE number < {LOOKED_AHEAD} "
        f"WITH part[number] AS fact, said[number] AS one, said[number + 1 .. number + {LOOKED_AHEAD + 1}] AS others, "
        f"said[number + 1][2] AS later, said[number + {LOOKED_AHEAD + 1}][2] AS beyond "
        "WITH fact, later, coalesce(head([other IN others WHERE other[0] <> one[0] OR other[1] = one[1] | other[2]]), "
        "beyond) AS of_thread "
        "WHERE coalesce(fact.valid_to, '') <> coalesce(later, '') "
        "OR coalesce(fact.thread_valid_to, '') <> coalesce(of_thread, '') "
        "SET fact.valid_to = later, fact.thread_valid_to = of_thread"
    )


_NEAR_NEW: Final = (
    f" WHERE any(place IN range(0, {2 * LOOKED_AHEAD + 1}) WHERE at + place < size(facts) AND NOT ({_FITS}))"
)


_LEAVING: Final = f"MATCH (s:{STATEMENT} {{leaving: $leaving}}) "
"""The statements that an event is about to remove: it has marked them first.

So how claims end without them has one text, whatever removes them. A server plans each text anew, and one that has just
started may take half a second of its processor for this.
"""
_STAYS: Final = "coalesce({0}.leaving, '') <> $leaving"
_ENDS: Final = claim_ends()
MOST_ENDED: Final = 3
"""Statements that verdicts about one statement may end."""
SAME_OWNER: Final = " AND ".join(
    f"coalesce(n.{name}, '') = coalesce(o.{name}, '')" for name in (*SCOPES[:-1], "author_name")
)
"""That two statements have one author, and one scope but for the thread."""
_SAME_AUTHOR: Final = (
    f"(n.user_id IS NOT NULL OR coalesce(n.thread_id, '') = coalesce(o.thread_id, '')) AND {SAME_OWNER}"
)
"""That two statements are by one user."""
_OF_PAIR: Final = f"MATCH (n:{STATEMENT} {{id: $new}}) MATCH (o:{STATEMENT} {{id: $old}}) WHERE n.chat_id = $chat_id "
_AS_SEEN: Final = (
    f"{_OF_PAIR}AND n.digest = $saw_new AND o.digest = $saw_old AND n.timestamp = $at AND o.rank < n.rank "
    f"AND o.memory_id <> n.memory_id AND {_SAME_AUTHOR} AND (o.chat_id = n.chat_id OR o.partition = n.partition) "
)
"""Chats in different partitions have no order, so what a verdict finds of another one could depend on the replay. All
chats of an app with the order ``app`` are in one partition."""
_KEEP_VERDICT: Final = (
    f"MERGE (n)-[j:{JUDGED}]->(o) ON CREATE SET j.verdict = $verdict, j.by = $by, j.reason = $reason, "
    "j.event_id = $event_id"
)
# Rules compare claims, so a verdict is for what says the same in words that no rule knows.
_MAY_END: Final = (
    "n.predicate IS NULL AND o.predicate IN n.topics AND o.subject = 'user' AND o.key IS NOT NULL AND o.holds"
)


def _judged_by(stays: str = "") -> str:
    """Return the query that says what ends ``o`` beside the claims of its key: a verdict, or the end of what it names.

    ``stays`` is the condition that a statement ``{0}`` does.
    """
    verdict, name = (stays and f" AND {stays.format(each)}" for each in "st")
    return (
        f"OPTIONAL MATCH (s:{STATEMENT})-[j:{JUDGED}]->(o) WHERE j.verdict = 'ends'{verdict} "
        "WITH o, min(s.timestamp + ' ' + s.id) AS judged "
        f"OPTIONAL MATCH (t:{STATEMENT} {{thing: o.thing}}) WHERE {named_ends('t', 'o')} AND t.rank > o.rank "
        f"AND t.memory_id <> o.memory_id{name} "
        "WITH o, judged, min(t.timestamp + ' ' + t.id) AS named "
        "SET o.judged = CASE WHEN judged IS NULL OR named < judged THEN named ELSE judged END "
    )


_JUDGED_BY: Final = _judged_by()
# Only claims up to the last that names them can have ended by these, and of those that had ended before, none has.
_NAMED: Final = (
    f"UNWIND $things AS thing MATCH (o:{STATEMENT} {{thing: thing.key}}) WHERE o.holds AND o.rank <= thing.last AND "
)
# Nodes without ``known_scopes`` belong to rules, which may have statements of a bank.
_ERASED_STATEMENTS: Final = (
    f"MATCH (s:{STATEMENT} {{user_id: $user_id}}) WHERE s.known_scopes IS NOT NULL AND {IS_ERASED.format('s')} "
)
_MOST_OF_KEY: Final = 10
"""Claims of one key and event that may end others: the last ones."""
_LEAVE: Final = "SET s.leaving = $leaving"
# Before the statements go: what they had ended holds again, or ends by what is left.
_RECOUNT: Final = f"{_LEAVING}{ENDED_BY}WITH DISTINCT o WHERE o IS NOT NULL {_judged_by(_STAYS)}"
_REVIVE: Final = f"{_LEAVING}{OF_KEYS}{claim_ends(_STAYS)}"
_STATEMENTS_OF: Final = (
    f"UNWIND $memory_ids AS memory_id MATCH (s:{STATEMENT} {{memory_id: memory_id, chat_id: $chat_id}}) "
)
_STATEMENTS_OF_UPDATED: Final = (
    f"MATCH (:{MEMORY_LABEL} {{id: $memory_id, chat_id: $chat_id}}) "
    f"MATCH (s:{STATEMENT} {{memory_id: $memory_id, chat_id: $chat_id}}) "
)
# A preference is as recent as the last summary that states it.
_STATED: Final = (
    f"MATCH (p)-[e:EXTRACTED_FROM]->(:{SUMMARY}) WITH p, max(e.stated_at) AS stated_at SET p.stated_at = stated_at"
)


def _tie(label: str) -> str:
    """Return the query that links facts or preferences of a summary to their memories, which it must have claimed."""
    return (
        f"MATCH (s:{SUMMARY} {{id: $id}}) UNWIND $sources AS source "
        f"MATCH (x:{label} {{id: source.id}}) MATCH (m:{MEMORY_LABEL} {{id: source.memory_id}})-[:PART_OF]->(s) "
        "MERGE (x)-[:EXTRACTED_FROM]->(m)"
    )


_WITHOUT_SUMMARY: Final = (
    f"OPTIONAL MATCH ({{0}})-[:EXTRACTED_FROM]->(s:{SUMMARY}) WITH {{0}}, count(s) AS many WHERE many = 0"
)
"""No pattern in a condition: a query that the analysis of Cypher cannot read may write any label, so that no rows share
a query."""
_TEXTS: Final[dict[str, tuple[str, str]]] = {
    "add": ("memory.add", _WHEN_NOT_ERASED + _ADD),
    "add_unowned": ("memory.add", _ADD),
    # Of memories that are there: an erasure may have kept them out. A search finds the memory, and its statements only
    # when it is forgotten: see ``keep_statements``.
    "state": (
        "memory.add",
        "UNWIND $statements AS statement "
        f"MATCH (m:{MEMORY_LABEL} {{id: statement.memory_id, chat_id: $chat_id, scopes: $scopes}}) "
        f"MERGE (s:{STATEMENT} {{id: statement.id}}) SET s.text = statement.text, s.timestamp = statement.timestamp, "
        "s.rank = statement.rank, s.memory_id = statement.memory_id, s.author_name = statement.author_name, "
        "s.subject = statement.subject, s.predicate = statement.predicate, s.object = statement.object, "
        "s.object_key = statement.object_key, s.holds = statement.holds, s.key = statement.key, "
        f"s.{PROFILE_KEY} = CASE WHEN statement.key IS NULL OR NOT statement.is_sure THEN null ELSE $profile END, "
        "s.role = 'user', s.is_whole = statement.is_whole, s.digest = statement.digest, s.topics = statement.topics, "
        "s.thing = statement.thing, s.ends = statement.ends, s.follows = statement.follows, s.marks = statement.marks, "
        "s.known_terms = statement.terms, s.length = statement.length, "
        f"s.known_scopes = $scopes, {_scope('s')}, s.chat_id = $chat_id, s.event_id = $event_id, "
        "s.recorded = $recorded, s.partition = $partition",
    ),
    "end_named": (
        "memory.add",
        f"{_NAMED}(o.judged IS NULL OR o.judged >= thing.first) WITH DISTINCT o {_JUDGED_BY}{OF_ENDED}{_ENDS}",
    ),
    "end_statements": (
        "memory.add",
        f"UNWIND $claims AS claim WITH claim.key AS key, claim.rank AS first, claim.rank AS last {_ENDS}",
    ),
    "embed": (
        "memory.embedded",
        # The vector of an earlier text comes late.
        f"MATCH (m:{MEMORY_LABEL} {{id: $memory_id, chat_id: $chat_id}}) WHERE coalesce(m.version, '') = $version "
        "SET m.embedding = vecf32($embedding), m.embedding_model = $model, "
        "m.embedding_size = $size",
    ),
    # A memory belongs to the first event of its user that names it, even if that event has no effect: an erasure in
    # another chat may apply before or after it. So a summary has memories of one user only, or of none.
    "claim": (
        "memory.summarized",
        f"UNWIND $memory_ids AS memory_id MATCH (m:{MEMORY_LABEL} {{id: memory_id, chat_id: $chat_id}}) "
        "WHERE m.summary_id IS NULL AND coalesce(m.user_id, '') = $owner SET m.summary_id = $id",
    ),
    # No summary if an erasure has deleted a memory. It counts as old as its oldest memory, so a later erasure finds it.
    "summarize": (
        "memory.summarized",
        f"UNWIND $memory_ids AS memory_id MATCH (m:{MEMORY_LABEL} {{id: memory_id, chat_id: $chat_id}}) "
        "WHERE m.summary_id = $id "
        "WITH collect(m) AS memories, min(m.recorded) AS recorded, min(m.timestamp) AS first, max(m.timestamp) AS last "
        "WHERE size(memories) = $count "
        f"MERGE (s:{SUMMARY} {{id: $id}}) "
        "SET s.text = $text, s.timestamp = last, s.from = first, s.recorded = recorded, s.model = $model, "
        f"s.terms = $terms, s.length = $length, s.unsearched = $unsearched, {_scope('s')}, s.scopes = $scopes, "
        "s.chat_id = $chat_id, s.event_id = $event_id, s.partition = $partition "
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
    "validity": ("memory.summarized", f"UNWIND $keys AS key {_validity(_NEAR_NEW)}"),
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
    # In the same chat only, where the order of adding and forgetting is kept.
    "forget": (
        "memory.forget",
        f"UNWIND $memory_ids AS memory_id MATCH (m:{MEMORY_LABEL} {{id: memory_id, chat_id: $chat_id}}) "
        "DETACH DELETE m",
    ),
    # Before the memories go. What is kept is found in their place.
    "keep_statements": (
        "memory.forget",
        f"{_STATEMENTS_OF}SET s.terms = s.known_terms, s.scopes = s.known_scopes",
    ),
    "leave": ("memory.forget", f"{_STATEMENTS_OF}{_LEAVE}"),
    "recount_forgotten": ("memory.forget", _RECOUNT),
    "revive_statements": ("memory.forget", _REVIVE),
    "forget_statements": ("memory.forget", f"{_STATEMENTS_OF}DETACH DELETE s"),
    "forget_versions": (
        "memory.forget",
        f"UNWIND $memory_ids AS memory_id MATCH (v:{VERSION} {{memory_id: memory_id, chat_id: $chat_id}}) "
        "DETACH DELETE v",
    ),
    # What the earlier text stated ends nothing any more.
    "leave_updated": ("memory.update", f"{_STATEMENTS_OF_UPDATED}{_LEAVE}"),
    "recount_updated": ("memory.update", _RECOUNT),
    "revive_updated": ("memory.update", _REVIVE),
    "forget_updated": ("memory.update", f"{_STATEMENTS_OF_UPDATED}DETACH DELETE s"),
    "update": ("memory.update", _UPDATE),
    "renew": ("memory.update", _RENEW),
    "end": ("memory.update", _END),
    "label": ("memory.update", _LABEL),
    "mark_elsewhere": ("memory.erase", MARKS[0]),
    "mark": ("memory.erase", MARKS[1]),
    "erase": (
        "memory.erase",
        f"MATCH (m:{MEMORY_LABEL} {{user_id: $user_id}}) WHERE {IS_ERASED.format('m')} DETACH DELETE m",
    ),
    "erase_versions": (
        "memory.erase",
        f"MATCH (v:{VERSION} {{user_id: $user_id}}) WHERE {IS_ERASED.format('v')} DETACH DELETE v",
    ),
    "leave_erased": ("memory.erase", f"{_ERASED_STATEMENTS}{_LEAVE}"),
    "recount_erased": ("memory.erase", _RECOUNT),
    "erase_ends": ("memory.erase", _REVIVE),
    "erase_statements": ("memory.erase", f"{_ERASED_STATEMENTS}DETACH DELETE s"),
    "erase_sources": (
        "memory.erase",
        f"MATCH (s:{SUMMARY} {{user_id: $user_id}}) WHERE {IS_ERASED.format('s')} "
        f"MATCH (s)-[:SUMMARIZES]->(m:{MEMORY_LABEL})<-[e:EXTRACTED_FROM]-() DELETE e",
    ),
    "erase_summaries": (
        "memory.erase",
        f"MATCH (s:{SUMMARY} {{user_id: $user_id}}) WHERE {IS_ERASED.format('s')} DETACH DELETE s",
    ),
    "erase_facts": (
        "memory.erase",
        f"MATCH (f:{FACT} {{user_id: $user_id}}) {_WITHOUT_SUMMARY.format('f')} DETACH DELETE f",
    ),
    "erase_preferences": (
        "memory.erase",
        f"MATCH (p:{PREFERENCE} {{user_id: $user_id}}) {_WITHOUT_SUMMARY.format('p')} DETACH DELETE p",
    ),
    "erase_preference_times": (
        "memory.erase",
        f"MATCH (p:{PREFERENCE} {{user_id: $user_id}}) {_STATED}",
    ),
    "erase_validity": (
        "memory.erase",
        f"MATCH (kept:{FACT} {{user_id: $user_id}}) WITH DISTINCT kept.key AS key {_validity('')}",
    ),
    "judge": ("statement.judged", f"{_AS_SEEN}{_KEEP_VERDICT}"),
    "judge_end": (
        "statement.judged",
        f"{_AS_SEEN}AND {_MAY_END} OPTIONAL MATCH (n)-[e:{JUDGED}]->(x:{STATEMENT}) WHERE e.verdict = 'ends' "
        f"WITH n, o, count(e) AS many WHERE many < {MOST_ENDED} {_KEEP_VERDICT}",
    ),
    "count_judged": ("statement.judged", f"{_OF_PAIR}WITH o {_JUDGED_BY}"),
    "end_judged": ("statement.judged", f"{_OF_PAIR}{OF_ENDED}{_ENDS}"),
    "unjudge": (
        "statement.unjudged",
        f"MATCH (n:{STATEMENT} {{id: $new}})-[j:{JUDGED}]->(o:{STATEMENT} {{id: $old}}) WHERE n.chat_id = $chat_id "
        "DELETE j",
    ),
    "count_unjudged": ("statement.unjudged", f"{_OF_PAIR}WITH o {_JUDGED_BY}"),
    "end_unjudged": ("statement.unjudged", f"{_OF_PAIR}{OF_ENDED}{_ENDS}"),
}
"""Mutation -> (event type, Cypher)."""
_FOLLOW: Final[Mapping[str, tuple[str, str, str]]] = {
    "follow_added": (
        "memory.add",
        "UNWIND $claims AS claim WITH claim.key AS key, claim.rank AS first, claim.rank AS last ",
        "",
    ),
    "follow_named": ("memory.add", f"{_NAMED}o.judged >= thing.first {OF_ENDED}", ""),
    "follow_forgotten": ("memory.forget", f"{_LEAVING}{OF_KEYS}", _STAYS),
    "follow_updated": ("memory.update", f"{_LEAVING}{OF_KEYS}", _STAYS),
    "follow_erased": ("memory.erase", f"{_LEAVING}{OF_KEYS}", _STAYS),
    "follow_judged": ("statement.judged", f"{_OF_PAIR}{OF_ENDED}", ""),
    "follow_unjudged": ("statement.unjudged", f"{_OF_PAIR}{OF_ENDED}", ""),
}
"""Change -> event type, the claims that change, and which stay: see ``ClaimDependents.texts``."""
_MARKED: Final = frozenset({*BY_SCOPE, EMBED, *ERASING})
"""Mutations that change what a search finds."""


_REFUSABLE: Final = frozenset({"memory.summarized"})
"""Types of which an event may have too many words for nodes that several events share."""
_NO_KEYS: Final = frozenset({(MEMORY_LABEL, "scopes"), (MEMORY_LABEL, "version"), (STATEMENT, "chat_id")})
"""Only looked at where the id says which nodes it is."""


class MemoryMutations:
    """The mutations of ``memory.*`` events."""

    types = frozenset(MEMORY)
    erasing = frozenset({"memory.erase", "memory.forget"})

    def __init__(self, predicate_rules: Mapping[str, EdgeRule] = NO_RULES) -> None:
        """``predicate_rules`` say which claims depend on which others."""
        self._dependents = ClaimDependents(ends_of(predicate_rules))
        self._declared = Declarations(_FILE, self._texts)
        self.indexes = terms_indexes(MEMORY_LABEL, VERSION, SUMMARY, FACT, PREFERENCE, STATEMENT)

    def _texts(self) -> Iterator[tuple[str, str, str]]:
        import_module(_CLAIMS)  # whoever parses these is about to read messages, and patterns take as long
        for id, (rule, text) in (_TEXTS | self._dependents.texts(_FOLLOW)).items():
            yield rule, id, marking(id, text) if id in _MARKED else text

    @property
    def mutations(self) -> Sequence[CompiledMutation]:
        """See ``Pack.mutations``."""
        return self._declared.mutations

    @property
    def keys(self) -> frozenset[tuple[str, str]]:
        """See ``Pack.keys``."""
        return self._keys

    @cached_property
    def _keys(self) -> frozenset[tuple[str, str]]:
        scoped = {(MEMORY_LABEL, name) for name in (*SCOPES, "id", "chat_id")}
        scoped |= {(other, name) for other in (SUMMARY, FACT, STATEMENT, VERSION) for name in SCOPES}
        scoped |= {(PREFERENCE, "user_id"), (STATEMENT, PROFILE_KEY)}
        return self._declared.keys(scoped, without=_NO_KEYS)

    @cached_property
    def _by_id(self) -> Mapping[str, CompiledMutation]:
        return {mutation.id: mutation for mutation in self.mutations}

    def match(self, event: Event, logged: LogTime | None = None) -> Sequence[tuple[CompiledMutation, _Params]]:
        """See ``Pack.match``."""
        return self._read(event, logged or LogTime.of(event))[0]

    def refusal(self, event: Event) -> str | None:
        """See ``Pack.refusal``: a summary whose facts have too many words."""
        return self._read(event, LogTime.of(event))[1] if event.type in _REFUSABLE else None

    def _read(self, event: Event, logged: LogTime) -> _Read:
        """Return the mutations of an event, and why it has none."""
        say = _SAY.get(event.type)
        if (plain := _without_nul(event.data)) is not event.data:
            event = event.model_copy(update={"data": plain})
        try:
            said = say(event, logged, self._dependents) if say else ()
            event_marks = (event.source, event.id, utc_text(logged.time))
            return [
                (self._by_id[id], params | _marks(id, params, event, event_marks) if id in _MARKED else params)
                for id, params in said
            ], None
        except InvalidEvent as error:
            return (), str(error)


def _marks(id: str, params: _Params, event: Event, event_marks: Sequence[str]) -> _Params:
    added = [message["id"] for message in params["messages"]] if id in ADDING else ()
    return mark_params(id, event.data, *event_marks, added=added)


def _without_nul(value: Any) -> Any:
    """Return a value without NUL in its texts, as the client sends them: a graph refuses it, and all beside it.

    The same value if it has none. A text of NUL alone becomes a replacement character.
    """
    if isinstance(value, str):
        return (value.replace("\0", "") or "\ufffd") if "\0" in value else value
    if isinstance(value, dict):
        given = cast("dict[str, Any]", value)
        made = {name: _without_nul(item) for name, item in given.items()}
        return made if any(made[name] is not item for name, item in given.items()) else given
    if isinstance(value, list):
        items = cast("Sequence[Any]", value)
        plain = [_without_nul(item) for item in items]
        return plain if any(one is not other for one, other in zip(plain, items, strict=True)) else items
    return value


def _add(event: Event, logged: LogTime, dependents: ClaimDependents) -> _Said:
    from graphweft_workers.features.memory.claims import EventReader

    payload = MemoryAdd.model_validate(event.data)
    messages: list[_Params] = []
    stated: list[_Params] = []
    scopes = _scopes(payload.scope.given)
    words = EventTerms()
    reader = EventReader()
    for number, message in enumerate(payload.messages):
        id = memory_id(event.source, event.id, number)
        time = message.time or moments_later(event.time, number)
        # What ends by itself claims nothing beyond its end, so it ends no claim, and leaves no statement.
        is_lasting = message.role == "user" and message.expires_at is None
        found = reader.statements(message.text, year=time.year) if is_lasting else []
        messages.append(
            {
                "id": id,
                "text": message.text,
                "role": message.role,
                # Messages of one event keep their order in a search by recency.
                "timestamp": utc_text(time),
                "message_id": message.message_id,
                "author_name": message.author_name,
                "stated": len(found) or None,
                "expires_at": None if message.expires_at is None else utc_text(message.expires_at),
                **stored_terms(words, message.searched),
                **_labels(message),
            }
        )
        stated += _stated(event, payload, messages[-1], found, dependents)
    common = _common(event, payload) | {"scopes": scopes} | logged_params(logged)
    said: list[tuple[str, _Params]] = [
        ("add_unowned" if payload.user_id is None else "add", common | {"messages": messages})
    ]
    if stated:
        _limit_claims(stated)
        profile = None if payload.user_id is None else profile_key(payload.user_id)
        said.append(("state", common | {"statements": stated, "profile": profile}))
    if things := _things(stated):
        said.append(("end_named", {"things": things}))
    if claims := [{"key": each["key"], "rank": each["rank"]} for each in stated if each["key"] is not None]:
        said.append(("end_statements", {"claims": claims}))
        said += _followed(stated, dependents)
    enders = [each for each in stated if each["ends"] is not None]
    levels = max((dependents.levels_below(name) for each in enders for name in each["ends"]), default=0)
    named = {"things": _things(enders)}
    return [*said, *((f"follow_named_{level}", named) for level in range(1, levels + 1))]


def _things(stated: Sequence[_Params]) -> list[_Params]:
    """Return what the claims name, and the first and last that do: others may end it, or end by it."""
    found: dict[str, list[_Params]] = {}
    for each in stated:
        if each["thing"] is not None:
            found.setdefault(each["thing"], []).append(each)
    return [
        {"key": key, "first": min(each["timestamp"] for each in some), "last": max(each["rank"] for each in some)}
        for key, some in found.items()
    ]


def _followed(stated: Sequence[_Params], dependents: ClaimDependents) -> Iterator[tuple[str, _Params]]:
    """Yield the mutations that end what depends on new claims, and those that depend on others."""
    found: dict[tuple[str, str], int] = {}
    for each in stated:
        if each["key"] is None:
            continue
        below = dependents.levels_below(each["predicate"])
        if below:
            found[each["key"], each["rank"]] = below
        if each["follows"] is not None:
            found[each["follows"], each["rank"]] = 1 + below
    for level in range(1, max(found.values(), default=0) + 1):
        claims = [{"key": key, "rank": rank} for (key, rank), levels in found.items() if levels >= level]
        yield f"follow_added_{level}", {"claims": claims}


def _follow(change: str, params: _Params, dependents: ClaimDependents) -> _Said:
    """Return the mutations that end, or bring back, what depends on claims of a change."""
    return [(f"{change}_{level}", params) for level in range(1, dependents.levels + 1)]


def _stated(
    event: Event,
    payload: MemoryAdd,
    message: _Params,
    found: Sequence[UserStatement],
    dependents: ClaimDependents,
) -> list[_Params]:
    """Return the statements of a message."""
    from graphweft_workers.features.memory.claims import is_all_stated

    # Authors may share a scope. Without a user, what another thread says is of somebody else.
    owner = [getattr(payload, name) or "" for name in SCOPES if name != "thread_id" or payload.user_id is None]
    author = name_key(message["author_name"] or "")
    words = EventTerms()
    is_whole = bool(found) and is_all_stated(message["text"], found)
    stated: list[_Params] = []
    for place, each in enumerate(found):
        claim = each.claim
        if claim is not None and claim.is_to_come:
            since = _since(each.text, message["timestamp"])
            claim = claim if since else None
        else:
            since = None
        object_key = claim.object_key if claim else None
        searched = f"{message['author_name']}: {each.text}" if message["author_name"] else each.text
        terms = stored_terms(words, searched)
        stated.append(
            {
                "id": derived_id("statement", message["id"], event.chatid, _scopes(payload.scope.given), place),
                "memory_id": message["id"],
                "text": each.text,
                "timestamp": since or message["timestamp"],
                "rank": f"{since or message['timestamp']} {message['id']} {place:03}",
                "author_name": message["author_name"],
                "is_whole": is_whole,
                "subject": claim.subject if claim else None,
                "predicate": claim.predicate if claim else None,
                "object": claim.object if claim else None,
                "object_key": object_key,
                "holds": claim.holds if claim else None,
                "key": key_of((*owner, author), claim.subject, claim.predicate, object_key or "", is_sure=claim.is_sure)
                if claim is not None
                else None,
                "is_sure": claim is not None and claim.is_sure,
                "thing": derived_id("thing", *owner, author, claim.thing)
                if claim is not None and claim.thing
                else None,
                "ends": list(claim.ends) or None if claim is not None else None,
                **_dependence((*owner, author), claim, dependents),
                "digest": _digest(each, message["timestamp"], author),
                "topics": _topics(each, terms["terms"], message["timestamp"]),
                "terms": terms["terms"],
                "length": terms["length"],
            }
        )
    for key in {each["key"] for each in stated} - {None}:
        _keep_one_claim([each for each in stated if each["key"] == key])
    return stated


def _since(text: str, timestamp: str) -> str | None:
    """Return the time from which on a claim holds that says its day; None if that cannot be told."""
    begins = stated_time(text, timestamp).begins
    return f"{begins}T00:00:00.000000Z" if begins > timestamp[:10] else timestamp if begins else None


def _dependence(owner: tuple[str, ...], claim: Claim | None, dependents: ClaimDependents) -> _Params:
    """Return the key of the claims that a claim depends on, and whether it is only marked; None: it depends on none."""
    above = dependents.depends_on(claim.predicate) if claim is not None and claim.is_sure and claim.holds else None
    if claim is None or above is None:
        return {"follows": None, "marks": None}
    marks = 1 if dependents.is_marked(claim.predicate) else None
    return {"follows": key_of(owner, claim.subject, above, ""), "marks": marks}


def _digest(statement: UserStatement, timestamp: str, author: str) -> str:
    """Return what tells a statement from another one that took its place."""
    claim = statement.claim
    said = (claim.subject, claim.predicate, claim.object, claim.holds) if claim is not None else ()
    return derived_id("statement digest", statement.text, timestamp, author, *said)


def _topics(statement: UserStatement, terms: str, timestamp: str) -> list[str] | None:
    """Return the predicates of claims that a verdict on a statement without a claim may end; None: there are none."""
    from graphweft_workers.features.memory.claims import is_doubtful

    if statement.claim is not None or is_doubtful(statement.text, year=int(timestamp[:4])):
        return None
    return predicates_of(frozenset(terms.split())) or None


def _keep_one_claim(claims: Sequence[_Params]) -> None:
    """Leave the key to one claim of a message: what holds, or what takes that back. To none if two hold."""
    kept: _Params | None = None
    for each in claims:
        if kept is None or each["holds"] or not kept["holds"] or each["object_key"] in {"", kept["object_key"]}:
            kept = each
    if len({each["object_key"] for each in claims if each["holds"]}) > 1:
        kept = None
    for each in claims:
        if each is not kept:
            each["key"] = None


def _limit_claims(stated: Sequence[_Params]) -> None:
    """Leave a key to the last claims of an event. What has none depends on nothing."""
    count: Counter[str] = Counter()
    for each in reversed(stated):
        if each["key"] is not None:
            count[each["key"]] += 1
            if count[each["key"]] > _MOST_OF_KEY:
                each["key"] = None
        if each["key"] is None:
            each["follows"] = each["marks"] = None


def _embedded(event: Event, logged: LogTime, dependents: ClaimDependents) -> _Said:
    del logged, dependents
    payload = MemoryEmbedded.model_validate(event.data)
    vector = list(payload.embedding)
    params = {"memory_id": payload.memory_id, "embedding": vector, "size": len(vector), "model": payload.model}
    params["version"] = payload.version or ""
    return [("embed", params | {"chat_id": event.chatid})]


def _summarized(event: Event, logged: LogTime, dependents: ClaimDependents) -> _Said:
    del dependents
    payload = MemorySummarized.model_validate(event.data)
    common = _common(event, payload)
    memory_ids = list(dict.fromkeys(payload.memory_ids))
    # The same event id with another content (the model was asked twice) is another summary.
    content = json.dumps(event.data, sort_keys=True, ensure_ascii=True)
    id = derived_id(event.source, event.id, "summary", content, event.chatid)
    scopes = _scopes(payload.scope.given)
    said: list[tuple[str, _Params]] = [
        (
            "claim",
            {"id": id, "memory_ids": memory_ids, "chat_id": event.chatid, "owner": payload.user_id or ""},
        ),
        (
            "summarize",
            common
            | stored_terms(EventTerms(), payload.summary)
            | {
                "id": id,
                "memory_ids": memory_ids,
                "count": len(memory_ids),
                "text": payload.summary,
                "model": payload.model,
                "scopes": scopes,
                "partition": logged.partition,
            },
        ),
    ]
    # A fact ends an earlier one of the same user in any thread; without a user, in the same thread only.
    owner = [common[name] or "" for name in SCOPES if name != "thread_id" or payload.user_id is None]
    facts: list[_Params] = []
    words = EventTerms()
    for fact in payload.facts:
        key = derived_id("fact", *owner, fact.subject.casefold(), fact.predicate.casefold())
        valid_from = utc_text(fact.valid_from or event.time)
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
                **shared_terms(words, text),
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
                **shared_terms(words, preference.text),
                "stated_at": utc_text(preference.stated_at or event.time),
                "memory_ids": list(dict.fromkeys(preference.memory_ids)),
            }
            for preference in payload.preferences
        ]
        # One node per user; its summaries say in which threads it was stated.
        owned = {"id": id, "user_id": payload.user_id, "scopes": _scopes({"user_id": payload.user_id})}
        said.append(("preferences", {**owned, "preferences": preferences}))
        said.append(("preference_times", {"preferences": list(dict.fromkeys(each["id"] for each in preferences))}))
        said.append(("preference_sources", _sources(id, preferences)))
    return said


def _update(event: Event, logged: LogTime, dependents: ClaimDependents) -> _Said:
    del logged
    payload = MemoryUpdate.model_validate(event.data)
    which = {"memory_id": payload.memory_id, "chat_id": event.chatid}
    said: list[tuple[str, _Params]] = []
    at = utc_text(payload.time or event.time)
    version = version_of(event.source, event.id, event.chatid, payload.memory_id)
    if payload.text is not None or isinstance(payload.expires_at, datetime):  # what it stated holds no more
        leaving = _leaving(event)
        said.append(("leave_updated", which | leaving))
        said += [(id, leaving) for id in ("recount_updated", "revive_updated")]
        said += _follow("follow_updated", leaving, dependents)
        said.append(("forget_updated", which))
    if payload.text is not None and payload.searched is not None:
        said.append((
            "update",
            which
            | stored_terms(EventTerms(), payload.searched)
            | {
                "text": payload.text,
                "author_name": payload.author_name,
                "at": at,
                "version": version,
            },
        ))  # fmt: skip
    if payload.expires_at is not None:
        if payload.text is None:
            said.append(("renew", which | {"at": at, "version": version}))
        ends = utc_text(payload.expires_at) if isinstance(payload.expires_at, datetime) else None
        said.append(("end", which | {"expires_at": ends}))
    labels = {**_labels(payload), "pinned": payload.pinned}
    if any(each is not None for each in labels.values()):
        said.append(("label", which | labels))
    return said


def _labels(given: MemoryMessage | MemoryUpdate) -> _Params:
    """Return the tags and the metadata as a node stores them; None for what is not given."""
    metadata = given.metadata
    written = None if metadata is None else json.dumps(metadata, sort_keys=True, ensure_ascii=False)
    return {
        "tags": None if given.tags is None else list(dict.fromkeys(given.tags)),
        "metadata": written,
        "metadata_terms": None if metadata is None else metadata_terms(metadata),
    }


def _forget(event: Event, logged: LogTime, dependents: ClaimDependents) -> _Said:
    del logged
    payload = MemoryForget.model_validate(event.data)
    params: _Params = {"memory_ids": list(dict.fromkeys(payload.memory_ids)), "chat_id": event.chatid}
    gone = [("forget", params), ("forget_versions", params)]
    if payload.keep_statements:
        return [("keep_statements", params), *gone]
    leaving = _leaving(event)
    revived = [(id, leaving) for id in ("recount_forgotten", "revive_statements")]
    followed = _follow("follow_forgotten", leaving, dependents)
    return [("leave", params | leaving), *revived, *followed, ("forget_statements", params), *gone]


def _leaving(event: Event) -> _Params:
    """Return what tells the statements that an event removes from all others."""
    return {"leaving": derived_id("leaving", event.source, event.id, event.chatid)}


def _erase(event: Event, logged: LogTime, dependents: ClaimDependents) -> _Said:
    payload = MemoryErase.model_validate(event.data)
    user = {"user_id": payload.user_id}
    until = user | erasure_of(payload, logged)
    leaving = _leaving(event)
    followed = _follow("follow_erased", leaving, dependents)
    others = ("erase_facts", "erase_preferences", "erase_preference_times", "erase_validity")
    return [
        *((id, until) for id in ("mark_elsewhere", "mark", "erase", "erase_versions")),
        ("leave_erased", until | leaving),
        *((id, leaving) for id in ("recount_erased", "erase_ends")),
        *followed,
        *((id, until) for id in ("erase_statements", "erase_sources", "erase_summaries")),
        *((id, user) for id in others),
    ]


def _judged(event: Event, logged: LogTime, dependents: ClaimDependents) -> _Said:
    del logged
    payload = StatementJudged.model_validate(event.data)
    pair = {"new": payload.new, "old": payload.old, "chat_id": event.chatid}
    params = pair | {
        "saw_new": payload.saw[payload.new],
        "saw_old": payload.saw[payload.old],
        "at": utc_text(payload.at),
        "verdict": payload.verdict,
        "by": payload.by,
        "reason": payload.reason,
        "event_id": event.id,
    }
    if payload.verdict != "ends":
        return [("judge", params)]
    ended = [("count_judged", pair), ("end_judged", pair), *_follow("follow_judged", pair, dependents)]
    return [("judge_end", params), *ended]


def _unjudged(event: Event, logged: LogTime, dependents: ClaimDependents) -> _Said:
    del logged
    payload = StatementUnjudged.model_validate(event.data)
    pair = {"new": payload.new, "old": payload.old, "chat_id": event.chatid}
    ended = [("count_unjudged", pair), ("end_unjudged", pair), *_follow("follow_unjudged", pair, dependents)]
    return [("unjudge", pair), *ended]


_SAY: Final[Mapping[str, Callable[[Event, LogTime, ClaimDependents], _Said]]] = {
    "memory.add": _add,
    "memory.embedded": _embedded,
    "memory.summarized": _summarized,
    "memory.update": _update,
    "memory.forget": _forget,
    "memory.erase": _erase,
    "statement.judged": _judged,
    "statement.unjudged": _unjudged,
}


def _common(event: Event, payload: MemoryAdd | MemorySummarized) -> _Params:
    scope = {name: getattr(payload, name) for name in SCOPES}
    return scope | {"chat_id": event.chatid, "event_id": event.id}


def _scopes(given: Mapping[str, str]) -> str:
    return " ".join(scope_term(name, value) for name, value in given.items())


def _sources(id: str, extracted: Sequence[_Params]) -> _Params:
    return {
        "id": id,
        "sources": [{"id": each["id"], "memory_id": memory} for each in extracted for memory in each["memory_ids"]],
    }
