"""The mutations of ``episode.*`` events.

::

    (:Episode)-[:MENTIONS]->(:Entity {type, name, description, summary})
    (:Entity)-[:HAS_ATTRIBUTE]->(:Attribute {name, value})
    (:Episode)-[:GIVES {value}]->(:Attribute)
    (:Entity)-[:RELATED_TO {name, fact, valid_at, invalid_at}]->(:Entity)
    (:Episode)-[:STATES]->(:Relation)  one for each RELATED_TO, with the same properties, for the fulltext index

An event never chooses a label, a relationship type or a property name. The type of an entity is a property, so
mutations do not depend on the loaded ontologies. An attribute is a node with its name as a value, because some servers
keep every property name for the life of a graph (65,535 at most) and block while they scan them. ``description`` and
``summary`` are properties of the entity, because graphrag shows them.

The result does not depend on the order of events. Relationships of an episode keep what it states; entities and
relations have, for each attribute, the value of the episode with the highest rank: its reference time, then its id. The
rank is the property ``stated``; that of ``description`` is ``_description``. So an erasure removes the share of one
episode only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final

from pydantic import ValidationError

from graphweft_contracts import Event, InvalidEvent
from graphweft_contracts.episodes import (
    EPISODES,
    EntityName,
    EpisodeAdd,
    EpisodeExtracted,
    Structure,
    episode_id,
    fault_of,
)
from graphweft_contracts.memory import SCOPES, MemoryErase, derived_id
from graphweft_rules.matching.clock import utc_text
from graphweft_rules.matching.mutation import CompiledMutation
from graphweft_rules.matching.pack import LogTime
from graphweft_workers.features.declarations import Declarations, shared_terms, stored_terms, terms_indexes
from graphweft_workers.features.edge_rules import TypeEnds
from graphweft_workers.features.episodes import relation_ends
from graphweft_workers.features.episodes.ontologies.ontology import Ontology
from graphweft_workers.features.episodes.ontologies.registry import Ontologies, resolve_ontology
from graphweft_workers.features.erasing import IS_ERASED, MARKS, NOT_ERASED, erasure_of, logged_params
from graphweft_workers.retrieval.records import ENTITY, EPISODE, PROFILE, RELATION
from graphweft_workers.retrieval.scope_marks import OF_EPISODES, mark_params, marking
from graphweft_workers.text.terms import EventTerms, name_key, scope_term

ATTRIBUTE: Final = "Attribute"

_SHOWN: Final = ("description", "summary")
"""Attributes that are properties of the entity; others are nodes."""

_FILE: Final = "graphweft:episodes"
"""Stands for the rule file where errors name a mutation."""

_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")
_LONGEST_KEY: Final = 1_000
"""Limit of characters in ``name_key``, because servers index no longer values; NFKC can make 4,608 of 256."""

type _Params = dict[str, Any]
type _Said = Sequence[tuple[str, _Params]]
type _Read = tuple[Sequence[tuple[CompiledMutation, _Params]], str | None]


def _scoped(variable: str) -> str:
    """Return the assignments of the scopes of a node."""
    return ", ".join(f"{variable}.{name} = ${name}" for name in (*SCOPES, "scopes"))


_ADD: Final = (
    # Another chat or scope with the same source and id has another episode.
    f"MERGE (p:{EPISODE} {{id: $id, chat_id: $chat_id, owner: $owner}}) "
    "SET p.name = $name, p.content = $content, p.episode_type = $episode_type, p.schema_id = $schema_id, "
    "p.source_description = $source_description, p.episode_id = $episode_id, p.reference_time = $reference_time, "
    f"p.recorded = $recorded, p.partition = $partition, p.rank = $rank, p.terms = $terms, p.length = $length, "
    f"p.unsearched = $unsearched, {_scoped('p')}, "
    "p.event_id = $event_id, p.structured_by = coalesce(p.structured_by, $key)"
)
_ADDING: Final[Mapping[str, str]] = {
    # One query: if the check were apart and failed, an episode would be lost silently.
    "add": f"MERGE (u:{PROFILE} {{id: $user_id}}) WITH u WHERE {NOT_ERASED} {_ADD}, u.user_id = $user_id",
    "add_unowned": _ADD,
}
_EXTRACTING: Final[Mapping[str, str]] = {
    # Only the first answer of a model counts.
    "extract": f"MATCH (p:{EPISODE} {{id: $episode, chat_id: $chat_id, owner: $owner, "
    "reference_time: $reference_time}) WHERE p.structured_by IS NULL SET p.structured_by = $key, p.model = $model",
}
_OF_EPISODE: Final = f"MATCH (p:{EPISODE} {{id: $episode, structured_by: $key}}) "
_LATEST: Final = "CASE WHEN coalesce({0}.stated, '') <= $rank THEN {1} ELSE {0}.{2} END"
_HIGHER: Final = "{0}.stated = CASE WHEN coalesce({0}.stated, '') < $rank THEN $rank ELSE {0}.stated END"
_SINCE: Final = (
    "{0}.valid_at = CASE WHEN relation.valid_from IS NOT NULL THEN relation.valid_from "
    "WHEN coalesce({0}.valid_at, '~') > $reference_time THEN $reference_time ELSE {0}.valid_at END"
)
# No query reads what another one writes, and each merges the entities itself, so rows of many events share a query.
# Each sets the scopes with the data, because a node without scopes is visible to everybody.
_STRUCTURE: Final[Mapping[str, str]] = {
    "entities": f"{_OF_EPISODE}UNWIND $entities AS entity MERGE (e:{ENTITY} {{id: entity.id}}) "
    "MERGE (p)-[m:MENTIONS]->(e) SET e.type = entity.type, e.name_key = entity.name_key, e.terms = entity.terms, "
    f"e.length = entity.length, {_scoped('e')}, e.name = {_LATEST.format('e', 'entity.name', 'name')}, "
    f"{_HIGHER.format('e')}, m.name = entity.name, "
    + ", ".join(
        f"e.{name} = CASE WHEN coalesce(e._{name}, '') <= entity._{name} THEN entity.{name} ELSE e.{name} END, "
        f"e._{name} = CASE WHEN coalesce(e._{name}, '') < entity._{name} THEN entity._{name} ELSE e._{name} END, "
        f"m.{name} = entity.{name}, m._{name} = entity._{name}"
        for name in _SHOWN
    ),
    "attributes": f"{_OF_EPISODE}UNWIND $attributes AS attribute MERGE (a:{ATTRIBUTE} {{id: attribute.id}}) "
    f"MERGE (p)-[g:GIVES]->(a) MERGE (e:{ENTITY} {{id: attribute.entity}}) MERGE (e)-[:HAS_ATTRIBUTE]->(a) "
    f"SET a.name = attribute.name, {_scoped('a')}, g.value = attribute.value, "
    f"a.value = {_LATEST.format('a', 'attribute.value', 'value')}, {_HIGHER.format('a')}",
    "relations": f"{_OF_EPISODE}UNWIND $relations AS relation MERGE (r:{RELATION} {{id: relation.id}}) "
    f"MERGE (p)-[s:STATES]->(r) MERGE (a:{ENTITY} {{id: relation.source}}) MERGE (b:{ENTITY} {{id: relation.target}}) "
    "MERGE (a)-[x:RELATED_TO {id: relation.id}]->(b) SET r.name = relation.name, r.source_id = relation.source, "
    "r.target_id = relation.target, r.valid_from = relation.valid_from, r.terms = relation.terms, "
    f"r.length = relation.length, {_scoped('r')}, s.fact = relation.fact, s.invalid_at = relation.invalid_at, "
    f"x.name = relation.name, {', '.join(f'x.{name} = ${name}' for name in SCOPES)}, "
    + ", ".join(
        f"{each}.fact = {_LATEST.format(each, 'relation.fact', 'fact')}, "
        # What ends by another one keeps its end beside what episodes state: see ``relation_ends``.
        f"{each}.invalid_at = CASE WHEN {each}.ended_by IS NULL "
        f"THEN {_LATEST.format(each, 'relation.invalid_at', 'invalid_at')} ELSE {each}.invalid_at END, "
        f"{'r.stated_until = CASE WHEN r.ended_at IS NULL THEN null ELSE ' if each == 'r' else ''}"
        f"{_LATEST.format('r', 'relation.invalid_at', 'stated_until') + ' END, ' if each == 'r' else ''}"
        f"{_HIGHER.format(each)}, {_SINCE.format(each)}"
        for each in ("r", "x")
    ),
    **relation_ends.BIND,
    **relation_ends.END,
}
_LASTING: Final = ("id", "type", "name_key", "terms", "length", *SCOPES, "scopes")
"""Properties of entities that do not depend on an episode."""
_NOTHING_SHOWN: Final[Mapping[str, None]] = dict.fromkeys((*_SHOWN, *(f"_{name}" for name in _SHOWN)))
_ERASING: Final[Mapping[str, str]] = {
    "mark_episodes_elsewhere": MARKS[0],
    "mark_episodes": MARKS[1],
    # By WHERE, because a property in a pattern counts as a key. Nodes without scopes belong to rules.
    "erase_episodes": f"MATCH (p:{EPISODE}) WHERE p.user_id = $user_id AND p.scopes IS NOT NULL "
    f"AND {IS_ERASED.format('p')} DETACH DELETE p",
    # Counted, because the labels of a pattern in WHERE cannot be analysed.
    "erase_entities": f"MATCH (e:{ENTITY}) WHERE e.user_id = $user_id AND e.scopes IS NOT NULL "
    f"OPTIONAL MATCH (p:{EPISODE})-[m:MENTIONS]->(e) WITH e, count(m) AS times WHERE times = 0 DETACH DELETE e",
    "erase_edges": f"MATCH (r:{RELATION}) WHERE r.user_id = $user_id AND r.scopes IS NOT NULL "
    f"OPTIONAL MATCH (p:{EPISODE})-[s:STATES]->(r) WITH r, count(s) AS times WHERE times = 0 "
    f"{relation_ends.edge_of('r')}DELETE x",
    "erase_relations": f"MATCH (r:{RELATION}) WHERE r.user_id = $user_id AND r.scopes IS NOT NULL "
    f"OPTIONAL MATCH (p:{EPISODE})-[s:STATES]->(r) WITH r, count(s) AS times WHERE times = 0 DETACH DELETE r",
    "erase_attributes": f"MATCH (a:{ATTRIBUTE}) WHERE a.user_id = $user_id AND a.scopes IS NOT NULL "
    f"OPTIONAL MATCH (p:{EPISODE})-[g:GIVES]->(a) WITH a, count(g) AS times WHERE times = 0 DETACH DELETE a",
    # Rebuild entities from the episodes that are left.
    "clear_entities": f"MATCH (e:{ENTITY}) WHERE e.user_id = $user_id AND e.scopes IS NOT NULL "
    f"SET e = {{{', '.join(f'{name}: e.{name}' for name in _LASTING)}}}",
    "rebuild_entities": f"MATCH (q:{EPISODE})-[m:MENTIONS]->(e:{ENTITY}) WHERE e.user_id = $user_id "
    "WITH e, m, q ORDER BY q.rank SET e += properties(m), e.stated = q.rank",
    "rebuild_attributes": f"MATCH (q:{EPISODE})-[g:GIVES]->(a:{ATTRIBUTE}) WHERE a.user_id = $user_id "
    "WITH a, g, q ORDER BY q.rank WITH a, last(collect(g)) AS g, last(collect(q.rank)) AS rank "
    "SET a.value = g.value, a.stated = rank",
    "rebuild_relations": f"MATCH (q:{EPISODE})-[s:STATES]->(r:{RELATION}) WHERE r.user_id = $user_id "
    "WITH r, s, q ORDER BY q.rank WITH r, last(collect(s)) AS s, last(collect(q.rank)) AS rank, "
    f"min(q.reference_time) AS since, {', '.join(f'max(s.{name}) AS {name}' for name in relation_ends.BOUND)} "
    f"{relation_ends.edge_of(', '.join(('r', 's', 'rank', 'since', *relation_ends.BOUND)))}SET "
    + ", ".join(
        f"{each}.stated = rank, {each}.fact = s.fact, {each}.invalid_at = s.invalid_at, "
        f"{each}.valid_at = coalesce(r.valid_from, since)"
        for each in ("r", "x")
    )
    + "".join(f", r.{name} = {name}" for name in relation_ends.BOUND),
    **relation_ends.ERASE,
}
_TIMED: Final = frozenset({"mark_episodes_elsewhere", "mark_episodes", "erase_episodes"})
_TEXTS: Final[Mapping[str, Mapping[str, str]]] = {
    "episode.add": {**_ADDING, **_STRUCTURE},
    "episode.extracted": {**_EXTRACTING, **_STRUCTURE},
    "memory.erase": _ERASING,
}
"""Event type -> its mutations."""


class EpisodeMutations:
    """The mutations of ``episode.*`` events, and of ``memory.erase`` on episodes."""

    types = frozenset({*EPISODES, "memory.erase"})
    erasing = frozenset({"memory.erase"})

    def __init__(self, ontologies: Ontologies | None = None) -> None:
        """``ontologies`` check structured episodes; None: the built-in ones."""
        self.ontologies = ontologies or Ontologies()
        self._last: tuple[Event | None, _Read] = (None, ((), None))
        self.indexes = terms_indexes(EPISODE, ENTITY, RELATION)

    @property
    def mutations(self) -> Sequence[CompiledMutation]:
        """See ``Pack.mutations``. They do not depend on ontologies."""
        return _DECLARED.mutations

    @property
    def keys(self) -> frozenset[tuple[str, str]]:
        """See ``Pack.keys``."""
        return self._keys

    @cached_property
    def _keys(self) -> frozenset[tuple[str, str]]:
        asked = {(label, name) for label in (EPISODE, ENTITY, RELATION) for name in ("id", "user_id", "agent_id")}
        asked |= {(ATTRIBUTE, "id"), (ATTRIBUTE, "user_id")}
        asked |= {(ENTITY, "name"), (ENTITY, "name_key"), (EPISODE, "thread_id")}
        asked |= {(RELATION, name) for name in ("key", "target_key", "follows", "changed_in")}
        return _DECLARED.keys(asked, without=_NO_KEYS)

    @cached_property
    def _by_name(self) -> Mapping[tuple[str, str], CompiledMutation]:
        return {(mutation.rule, mutation.id): mutation for mutation in self.mutations}

    def match(self, event: Event, logged: LogTime | None = None) -> Sequence[tuple[CompiledMutation, _Params]]:
        """See ``Pack.match``. A refused episode has no mutations: see ``refusal``."""
        said = self._read(event)[0]
        logged = logged or LogTime.of(event)
        event_marks = (event.source, event.id, utc_text(logged.time))
        said = [
            (each, params | mark_params(OF_EPISODES[each.id], {}, *event_marks) if each.id in OF_EPISODES else params)
            for each, params in said
        ]
        if event.type == "memory.erase":
            erasure = erasure_of(MemoryErase.model_validate(event.data), logged)
            return [(each, params | erasure if each.id in _TIMED else params) for each, params in said]
        return [(each, params | logged_params(logged) if each.id in _ADDING else params) for each, params in said]

    def refusal(self, event: Event) -> str | None:
        """Return why an event of these types has no effect; None if it has one, or is of another type.

        The text never quotes an episode.
        """
        return self._read(event)[1]

    def _read(self, event: Event) -> _Read:
        """Return the mutations of an event, and why it has none. Cached for the last event."""
        known, found = self._last
        if known is not event:
            found = self._fresh(event)
            self._last = (event, found)
        return found

    def _fresh(self, event: Event) -> _Read:
        say = _SAY.get(event.type)
        if say is None:
            return (), None
        try:
            said = say(event, self.ontologies)
            _check_storable([params for _, params in said])
        except InvalidEvent as error:
            return (), str(error)
        except ValidationError as error:
            return (), fault_of(error, "data")
        return [(self._by_name[event.type, id], params) for id, params in said], None


def _texts() -> Iterator[tuple[str, str, str]]:
    for rule, mutations in _TEXTS.items():
        for id, text in mutations.items():
            yield rule, id, marking(OF_EPISODES[id], text) if id in OF_EPISODES else text


_DECLARED: Final = Declarations(_FILE, _texts)


def _check_storable(value: Any) -> None:
    """Raise ``InvalidEvent`` for text that no graph server accepts."""
    if isinstance(value, str):
        if not value.isprintable() and ("\0" in value or _SURROGATE.search(value)):
            msg = "a text of the episode has a NUL or a lone surrogate, which no graph stores: remove it"
            raise InvalidEvent(msg)
    elif isinstance(value, Mapping):
        for name, item in value.items():  # pyright: ignore[reportUnknownVariableType]
            _check_storable(name)
            _check_storable(item)
    elif isinstance(value, list | tuple):
        for item in value:  # pyright: ignore[reportUnknownVariableType]
            _check_storable(item)


_NO_KEYS: Final = frozenset({(EPISODE, name) for name in ("chat_id", "owner", "reference_time", "structured_by")})
"""Only looked at where the id says which node it is."""


def entity_id(scope: Mapping[str, str | None], type: str, name: str) -> str:
    """Return the id of the entity with this type and name within a scope (``MemoryScope.given``).

    Case, blanks and Unicode forms of a name do not matter (``name_key``). ``thread_id`` counts only if it is the whole
    scope.
    """
    return _entity_id(tuple(_wide(scope).values()), type, name_key(name))


def attribute_id(entity: str, name: str) -> str:
    """Return the id of the attribute with this name of an entity."""
    return derived_id("attribute", entity, name)


@lru_cache(maxsize=16_384)
def _entity_id(scope: tuple[str | None, ...], type: str, key: str) -> str:
    return derived_id("entity", *scope, type, key)


def _add(event: Event, ontologies: Ontologies) -> _Said:
    payload = EpisodeAdd.model_validate(event.data)
    text = payload.text
    ontology = resolve_ontology(payload.schema_id, text, ontologies)
    structure = payload.structure
    if structure is not None and ontology is not None:
        structure = ontology.check(structure)
    scope = payload.scope.given
    id = episode_id(event.source, event.id)
    reference = payload.reference_time or event.time
    reference_time = utc_text(reference)
    owner = _owner(scope)
    key = None if structure is None else derived_id(event.source, event.id, "structure", event.chatid, owner)
    words = stored_terms(EventTerms(), text if structure is None else _spoken(structure))
    if structure is not None and ontology is not None:
        structure = ontology.whole(structure, reference)
    params: _Params = {
        **_common(scope),
        "id": id,
        "name": payload.name,
        "content": text,
        "episode_type": payload.episode_type,
        "schema_id": None if ontology is None else ontology.schema_id,
        "source_description": payload.source_description,
        "episode_id": payload.episode_id,
        "reference_time": reference_time,
        "rank": _rank(reference_time, id),
        **words,
        "owner": owner,
        "chat_id": event.chatid,
        "event_id": event.id,
        "key": key,
    }
    said: list[tuple[str, _Params]] = [("add_unowned" if payload.user_id is None else "add", params)]
    if structure is not None:
        rules = _Rules(ontology=ontology, ontologies=ontologies)
        said += _structure(structure, scope, id, key, reference_time=reference_time, rules=rules)
    return said


def _extracted(event: Event, ontologies: Ontologies) -> _Said:
    payload = EpisodeExtracted.model_validate(event.data)
    scope = payload.scope.given
    structure = payload.structure  # the job fitted it to its ontology
    # Without the ontology, its episode is a dead letter.
    ontology = ontologies.get(payload.schema_id) if payload.schema_id in ontologies.ids else None
    if ontology is not None:
        structure = ontology.whole(structure, payload.reference_time)
    reference_time = utc_text(payload.reference_time)
    # A worker that died may have emitted the same event with another answer of the model.
    content = json.dumps(payload.structure.model_dump(mode="json"), sort_keys=True)
    key = derived_id(event.source, event.id, "structure", content, event.chatid)
    params = {
        "episode": payload.episode_id,
        "chat_id": event.chatid,
        "owner": _owner(scope),
        "reference_time": reference_time,
        "key": key,
        "model": payload.model,
    }
    rules = _Rules(ontology=ontology, ontologies=ontologies)
    rest = _structure(structure, scope, payload.episode_id, key, reference_time=reference_time, rules=rules)
    return [("extract", params), *rest]


def _erase(event: Event, ontologies: Ontologies) -> _Said:
    del ontologies
    payload = MemoryErase.model_validate(event.data)
    user = {"user_id": payload.user_id}
    return [(id, user) for id in _ERASING]


_SAY: Final[Mapping[str, Callable[[Event, Ontologies], _Said]]] = {
    "episode.add": _add,
    "episode.extracted": _extracted,
    "memory.erase": _erase,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    """By what the relations of an episode end others."""

    ontology: Ontology | None
    """Of the episode."""
    ontologies: Ontologies


def _structure(
    said: Structure, scope: Mapping[str, str], episode: str, key: str | None, *, reference_time: str, rules: _Rules
) -> Iterator[tuple[str, _Params]]:
    """Yield the mutations for the structure of an episode; the last of equal statements counts."""
    wide = _wide(scope)
    rank = _rank(reference_time, episode)
    common: _Params = {"episode": episode, "key": key, "rank": rank}
    entities: dict[str, _Params] = {}
    attributes: dict[tuple[str, str], _Params] = {}
    beyond = tuple(wide.values())
    words = EventTerms()

    def mention(type: str, name: str) -> str:
        known = name_key(name)
        if len(known) > _LONGEST_KEY:
            msg = f"the name of an entity of type {type!r} has more than {_LONGEST_KEY} characters in NFKC: shorten it"
            raise InvalidEvent(msg)
        id = _entity_id(beyond, type, known)
        if id not in entities:
            entities[id] = {"id": id, "type": type, "name_key": known, **shared_terms(words, known), **_NOTHING_SHOWN}
        entities[id]["name"] = name
        return id

    relations: dict[str, _Params] = {}
    for relation in said.relations:
        ends = [said.entity(named) for named in (relation.source, relation.target)]
        source, target = (mention(end.type, end.name) for end in ends)
        fact = relation.fact or _sentence(relation.type, *ends)
        valid_from = None if relation.valid_from is None else utc_text(relation.valid_from)
        id = derived_id("relation", source, relation.type, target, name_key(relation.fact), valid_from or "")
        relations[id] = {
            "id": id,
            "name": relation.type,
            "source": source,
            "target": target,
            "fact": fact,
            "valid_from": valid_from,
            "invalid_at": None if relation.valid_to is None else utc_text(relation.valid_to),
            **shared_terms(words, fact),
        }
    for entity in said.entities:  # after the relations: the name as entities spell it is shown
        id = mention(entity.type, entity.name)
        for name, value in entity.attributes.items():
            if name in _SHOWN:
                entities[id] |= {name: value, f"_{name}": rank}
            else:
                attributes[id, name] = {
                    "id": attribute_id(id, name), "entity": id, "name": name, "value": value,
                }  # fmt: skip
    if entities:
        yield "entities", {**common, **_common(wide), "entities": list(entities.values())}
    if attributes:
        yield "attributes", {**common, **_common(wide), "attributes": list(attributes.values())}
    if relations:
        times = {"reference_time": reference_time, "relations": list(relations.values())}
        yield "relations", {**common, **_common(wide), **times}
        yield from _ends(list(relations.values()), {"episode": episode, "key": key}, reference_time, rules)


def _ends(
    relations: list[_Params], of_episode: _Params, reference_time: str, rules: _Rules
) -> Iterator[tuple[str, _Params]]:
    """Yield the mutations by which relations end others."""
    of_types: Mapping[str, TypeEnds] = {} if rules.ontology is None else rules.ontology.ends
    bound = [
        relation_ends.bound_of(
            each, of_type, each["valid_from"] or (reference_time if each["invalid_at"] is None else None)
        )
        for each in relations
        if (of_type := of_types.get(each["name"])) is not None
    ]
    if bound:
        yield "bind_relations", {**of_episode, "bound": bound}
    yield from relation_ends.ends_after(relations, rules.ontologies.ends, of_episode["episode"])


def _common(scope: Mapping[str, str | None]) -> _Params:
    return {name: scope.get(name) for name in SCOPES} | {"scopes": _scopes(tuple(scope.get(name) for name in SCOPES))}


@lru_cache(maxsize=4_096)
def _scopes(values: tuple[str | None, ...]) -> str:
    return " ".join(scope_term(name, value) for name, value in zip(SCOPES, values, strict=True) if value is not None)


def _wide(scope: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the scope of entities: that of the episode without the thread, unless it has nothing else."""
    beyond = any(scope.get(name) for name in SCOPES if name != "thread_id")
    return {name: None if beyond and name == "thread_id" else scope.get(name) for name in SCOPES}


def _owner(scope: Mapping[str, str | None]) -> str:
    return _owner_id(tuple(scope.get(name) or "" for name in SCOPES))


@lru_cache(maxsize=4_096)
def _owner_id(values: tuple[str, ...]) -> str:
    return derived_id("scope", *values)


def _rank(reference_time: str, id: str) -> str:
    """Return the rank of an episode; with 48 bits of its id, because each attribute stores it."""
    return f"{reference_time} {id[-12:]}"


def _spoken(said: Structure) -> str:
    """Return the text of a structured episode, without the keys of its JSON."""
    values = [relation.fact for relation in said.relations]
    for relation in said.relations:
        values += (end.name for end in (relation.source, relation.target) if isinstance(end, EntityName))
    for entity in said.entities:
        values.append(entity.name)
        for value in entity.attributes.values():
            values += [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return "\n".join(values)


def _sentence(type: str, source: EntityName, target: EntityName) -> str:
    return f"{source.name} {type.replace('_', ' ').lower()} {target.name}"
