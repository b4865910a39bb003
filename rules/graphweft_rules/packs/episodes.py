"""What the events about episodes do to an app's graph.

::

    (:Episode)-[:MENTIONS]->(:Entity {type, name, …attributes})
    (:Entity)-[:RELATES_TO {name, fact, valid_at, invalid_at}]->(:Entity)
    (:Episode)-[:STATES]->(:Relation)  one for each RELATES_TO, with the same: fulltext indexes hold nodes

The type of an entity is a property and no label. A label has to stand in the text of a query, so each ontology would
bring mutations of its own, and whether an episode of last year can be replayed would depend on what is loaded today.

Order does not decide what remains, as with memories: what each episode says stays on its own relationships, and
entities and relations have what the episode with the highest rank says, attribute by attribute. A rank is the time that
the episode is about, then its id. So an erasure takes out one episode's share and leaves what the others say.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from graphweft_contracts import Event, InvalidEvent
from graphweft_contracts.episodes import EPISODES, EntityName, EpisodeAdd, EpisodeExtracted, Structure, episode_id
from graphweft_contracts.memory import SCOPES, MemoryErase, derived_id
from graphweft_rules.clock import utc_text
from graphweft_rules.cypher import parse
from graphweft_rules.indexes import SearchIndex
from graphweft_rules.model import Place
from graphweft_rules.ontologies.registry import Ontologies, resolve_ontology
from graphweft_rules.packs.memory import PROFILE
from graphweft_rules.terms import scope_term, terms
from graphweft_rules.workflow import CompiledMutation

__all__ = ("ENTITY", "EPISODE", "RELATION", "EpisodePack", "entity_id")

EPISODE: Final = "Episode"
ENTITY: Final = "Entity"
RELATION: Final = "Relation"

_FILE: Final = "graphweft:episodes"
"""In the place of a rule file, where a dead letter or an error says which mutation it is about."""

type _Params = dict[str, Any]
type _Said = Sequence[tuple[str, _Params]]


def _scoped(variable: str) -> str:
    """Return the assignments of what says whose a node is."""
    return ", ".join(f"{variable}.{name} = ${name}" for name in (*SCOPES, "scopes"))


_ADD: Final = (
    f"MERGE (p:{EPISODE} {{id: $id}}) "
    "SET p.name = $name, p.content = $content, p.episode_type = $episode_type, p.schema_id = $schema_id, "
    "p.source_description = $source_description, p.episode_id = $episode_id, p.reference_time = $reference_time, "
    f"p.recorded = $recorded, p.rank = $rank, p.terms = $terms, p.length = $length, {_scoped('p')}, p.owner = $owner, "
    "p.chat_id = $chat_id, p.event_id = $event_id, p.structured_by = coalesce(p.structured_by, $key)"
)
_ADDING: Final[Mapping[str, str]] = {
    # Whoever has been erased is asked for in a query of its own, so that the rows of this one can share a query.
    "owner": f"MERGE (u:{PROFILE} {{id: $user_id}}) "
    "SET u.user_id = $user_id, u.erased_before = coalesce(u.erased_before, '')",
    "add": f"MATCH (u:{PROFILE} {{id: $user_id}}) WHERE u.erased_before < $recorded {_ADD}",
    "add_unowned": _ADD,
}
_EXTRACTING: Final[Mapping[str, str]] = {
    # A second answer of a model changes nothing, however different it is.
    "extract": f"MATCH (p:{EPISODE} {{id: $episode, chat_id: $chat_id, owner: $owner, "
    "reference_time: $reference_time}) WHERE p.structured_by IS NULL SET p.structured_by = $key, p.model = $model",
}
_OF_EPISODE: Final = f"MATCH (p:{EPISODE} {{id: $episode, structured_by: $key}}) "
_MENTIONED: Final = f"MATCH (p)-[:MENTIONS]->(e:{ENTITY} {{id: entity.id}}) "
_LATEST: Final = "CASE WHEN coalesce({0}.stated, '') <= $rank THEN {1} ELSE {0}.{2} END"
_HIGHER: Final = "{0}.stated = CASE WHEN coalesce({0}.stated, '') < $rank THEN $rank ELSE {0}.stated END"
_SINCE: Final = (
    "{0}.valid_at = CASE WHEN relation.valid_from IS NOT NULL THEN relation.valid_from "
    "WHEN coalesce({0}.valid_at, '~') > $reference_time THEN $reference_time ELSE {0}.valid_at END"
)
# One query says all there is to say of entities, and one of relations: so many events share each of them.
_STRUCTURE: Final[Mapping[str, str]] = {
    "entities": f"{_OF_EPISODE}UNWIND $entities AS entity MERGE (e:{ENTITY} {{id: entity.id}}) "
    "MERGE (p)-[m:MENTIONS]->(e) SET e.type = entity.type, e.terms = entity.terms, e.length = entity.length, "
    f"{_scoped('e')}, e.name = {_LATEST.format('e', 'entity.name', 'name')}, {_HIGHER.format('e')}, "
    "m.name = entity.name",
    "described": f"{_OF_EPISODE}UNWIND $described AS entity "
    f"MATCH (p)-[m:MENTIONS]->(e:{ENTITY} {{id: entity.id}}) SET m += entity.attributes",
    "attributes": f"{_OF_EPISODE}UNWIND $described AS entity {_MENTIONED}"
    "WHERE e.stated = $rank SET e += entity.attributes",
    # An episode about an earlier time comes late: what it says counts where no later one says it, too.
    "late": f"{_OF_EPISODE}UNWIND $described AS entity {_MENTIONED}WHERE e.stated > $rank "
    f"MATCH (q:{EPISODE})-[m:MENTIONS]->(e) WHERE q.rank >= $rank WITH e, m, q ORDER BY q.rank SET e += properties(m)",
    "relations": f"{_OF_EPISODE}UNWIND $relations AS relation MERGE (r:{RELATION} {{id: relation.id}}) "
    f"MERGE (p)-[s:STATES]->(r) MERGE (a:{ENTITY} {{id: relation.source}}) MERGE (b:{ENTITY} {{id: relation.target}}) "
    "MERGE (a)-[x:RELATES_TO {id: relation.id}]->(b) SET r.name = relation.name, r.source_id = relation.source, "
    "r.target_id = relation.target, r.valid_from = relation.valid_from, r.terms = relation.terms, "
    f"r.length = relation.length, {_scoped('r')}, s.fact = relation.fact, s.invalid_at = relation.invalid_at, "
    "x.name = relation.name, "
    + ", ".join(
        f"{each}.fact = {_LATEST.format(each, 'relation.fact', 'fact')}, "
        f"{each}.invalid_at = {_LATEST.format(each, 'relation.invalid_at', 'invalid_at')}, "
        f"{_HIGHER.format(each)}, {_SINCE.format(each)}"
        for each in ("r", "x")
    ),
}
_ERASING: Final[Mapping[str, str]] = {
    "mark_episodes": f"MERGE (u:{PROFILE} {{id: $user_id}}) SET u.user_id = $user_id, u.erased_before = "
    "CASE WHEN coalesce(u.erased_before, '') < $before THEN $before ELSE u.erased_before END",
    "erase_episodes": f"MATCH (p:{EPISODE} {{user_id: $user_id}}) WHERE p.recorded <= $before DETACH DELETE p",
    # Counted rather than asked for by a pattern in WHERE: what the labels of such a query are cannot be told.
    "erase_entities": f"MATCH (e:{ENTITY} {{user_id: $user_id}}) OPTIONAL MATCH (p:{EPISODE})-[m:MENTIONS]->(e) "
    "WITH e, count(m) AS times WHERE times = 0 DETACH DELETE e",
    "erase_edges": f"MATCH (r:{RELATION} {{user_id: $user_id}}) OPTIONAL MATCH (p:{EPISODE})-[s:STATES]->(r) "
    "WITH r, count(s) AS times WHERE times = 0 "
    f"MATCH (a:{ENTITY} {{id: r.source_id}})-[x:RELATES_TO {{id: r.id}}]->(b:{ENTITY}) DELETE x",
    "erase_relations": f"MATCH (r:{RELATION} {{user_id: $user_id}}) OPTIONAL MATCH (p:{EPISODE})-[s:STATES]->(r) "
    "WITH r, count(s) AS times WHERE times = 0 DETACH DELETE r",
    # What is left of an entity is what is left of its episodes, so it is put together anew.
    "clear_entities": f"MATCH (e:{ENTITY} {{user_id: $user_id}}) "
    f"SET e = {{{', '.join(f'{name}: e.{name}' for name in ('id', 'type', 'terms', 'length', *SCOPES, 'scopes'))}}}",
    "rebuild_entities": f"MATCH (q:{EPISODE})-[m:MENTIONS]->(e:{ENTITY} {{user_id: $user_id}}) "
    "WITH e, m, q ORDER BY q.rank SET e += properties(m), e.stated = q.rank",
    "rebuild_relations": f"MATCH (q:{EPISODE})-[s:STATES]->(r:{RELATION} {{user_id: $user_id}}) "
    "WITH r, s, q ORDER BY q.rank WITH r, last(collect(s)) AS s, last(collect(q.rank)) AS rank, "
    "min(q.reference_time) AS since "
    "SET r.stated = rank, r.fact = s.fact, r.invalid_at = s.invalid_at, r.valid_at = coalesce(r.valid_from, since)",
    "rebuild_edges": f"MATCH (r:{RELATION} {{user_id: $user_id}}) "
    f"MATCH (a:{ENTITY} {{id: r.source_id}})-[x:RELATES_TO {{id: r.id}}]->(b:{ENTITY}) "
    "SET x.stated = r.stated, x.fact = r.fact, x.valid_at = r.valid_at, x.invalid_at = r.invalid_at",
}
_TEXTS: Final[Mapping[str, Mapping[str, str]]] = {
    "episode.add": {**_ADDING, **_STRUCTURE},
    "episode.extracted": {**_EXTRACTING, **_STRUCTURE},
    "memory.erase": _ERASING,
}
"""Type of event -> its mutations."""


class EpisodePack:
    """The effects of ``episode.*`` events, and of ``memory.erase`` on episodes."""

    types = frozenset({*EPISODES, "memory.erase"})

    def __init__(self, ontologies: Ontologies | None = None) -> None:
        """Structured episodes are checked by these ontologies; without any, by the built-in ones."""
        self.ontologies = ontologies or Ontologies()
        texts = [(rule, id, text) for rule, mutations in _TEXTS.items() for id, text in mutations.items()]
        self.mutations = tuple(
            CompiledMutation(
                rule=rule,
                id=id,
                cypher=parse(text, role="mutation"),
                sources=(),
                place=Place(file=_FILE, line=number),
            )
            for number, (rule, id, text) in enumerate(texts, 1)
        )
        self._by_name = {(mutation.rule, mutation.id): mutation for mutation in self.mutations}
        asked = {(label, name) for label in (EPISODE, ENTITY, RELATION) for name in ("id", "user_id", "agent_id")}
        asked |= {(ENTITY, "name"), (EPISODE, "thread_id")}
        self.keys = frozenset(asked).union(*(mutation.cypher.keys for mutation in self.mutations)) - _NO_KEYS
        self.indexes = tuple(
            SearchIndex(
                kind="fulltext",
                label=label,
                properties=("terms", "scopes"),
                name=f"graphweft_{label}_terms",
                terms=True,
            )
            for label in (EPISODE, ENTITY, RELATION)
        )

    def match(self, event: Event) -> Sequence[tuple[CompiledMutation, _Params]]:
        """See ``Pack.match``. An episode that is refused has no mutations: ask ``refusal`` why."""
        say = _SAY.get(event.type)
        try:
            said = () if say is None else say(event, self.ontologies)
        except (InvalidEvent, ValidationError):
            return ()
        return [(self._by_name[event.type, id], params) for id, params in said]

    def refusal(self, event: Event) -> str | None:
        """Return why an event of these types has no effect, for a dead letter; None when it has, or is another's.

        The text names types and places, never what an episode says.
        """
        say = _SAY.get(event.type)
        try:
            if say is not None:
                say(event, self.ontologies)
        except InvalidEvent as error:
            return str(error)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            return f"data.{'.'.join(map(str, first['loc']))}: {first['msg']}"
        return None


_NO_KEYS: Final = frozenset({(EPISODE, name) for name in ("chat_id", "owner", "reference_time", "structured_by")})
"""Only looked at where the id says which node it is."""


def entity_id(scope: Mapping[str, str | None], type: str, name: str) -> str:
    """Return the id of the entity of a scope (``MemoryScope.given``) that has this type and name.

    Names that differ by capitals, blanks or Unicode forms alone are one. Entities are known beyond the thread in which
    they are mentioned, unless nothing else says whose they are.
    """
    return derived_id("entity", *_wide(scope).values(), type, _normal(name))


def _add(event: Event, ontologies: Ontologies) -> _Said:
    payload = EpisodeAdd.model_validate(event.data)
    text = payload.text
    ontology = resolve_ontology(payload.schema_id, text, ontologies)
    structure = payload.structure
    if structure is not None and ontology is not None:
        structure = ontology.check(structure)
    scope = payload.scope.given
    id = episode_id(event.source, event.id)
    reference_time = utc_text(payload.reference_time or event.time)
    key = None if structure is None else derived_id(event.source, event.id, "structure")
    found = terms(text)
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
        "recorded": utc_text(event.time),
        "rank": _rank(reference_time, id),
        "terms": " ".join(found),
        "length": len(found),
        "owner": _owner(scope),
        "chat_id": event.chatid,
        "event_id": event.id,
        "key": key,
    }
    said: list[tuple[str, _Params]] = []
    if payload.user_id is None:
        said.append(("add_unowned", params))
    else:
        said += [("owner", {"user_id": payload.user_id}), ("add", params)]
    if structure is not None:
        said += _structure(structure, scope, id, key, reference_time)
    return said


def _extracted(event: Event, ontologies: Ontologies) -> _Said:
    del ontologies  # what was extracted has been fitted to its ontology when the model answered
    payload = EpisodeExtracted.model_validate(event.data)
    scope = payload.scope.given
    reference_time = utc_text(payload.reference_time)
    # The same event may come with another answer of the model, when its worker died in between.
    content = json.dumps(payload.structure.model_dump(mode="json"), sort_keys=True)
    key = derived_id(event.source, event.id, "structure", content)
    params = {
        "episode": payload.episode_id,
        "chat_id": event.chatid,
        "owner": _owner(scope),
        "reference_time": reference_time,
        "key": key,
        "model": payload.model,
    }
    return [("extract", params), *_structure(payload.structure, scope, payload.episode_id, key, reference_time)]


def _erase(event: Event, ontologies: Ontologies) -> _Said:
    del ontologies
    payload = MemoryErase.model_validate(event.data)
    user = {"user_id": payload.user_id}
    until = user | {"before": utc_text(payload.before or event.time)}
    return [(id, until if id in ("mark_episodes", "erase_episodes") else user) for id in _ERASING]


_SAY: Final[Mapping[str, Callable[[Event, Ontologies], _Said]]] = {
    "episode.add": _add,
    "episode.extracted": _extracted,
    "memory.erase": _erase,
}


def _structure(
    said: Structure, scope: Mapping[str, str], episode: str, key: str | None, reference_time: str
) -> Iterator[tuple[str, _Params]]:
    """Yield the mutations for what there is to know in an episode. Of what it says twice, the last counts."""
    wide = _wide(scope)
    common: _Params = {"episode": episode, "key": key, "rank": _rank(reference_time, episode)}
    entities: dict[str, _Params] = {}
    described: dict[str, _Params] = {}

    def mention(type: str, name: str) -> str:
        id = entity_id(scope, type, name)
        found = terms(name)
        entities[id] = {"id": id, "type": type, "name": name, "terms": " ".join(found), "length": len(found)}
        return id

    relations: dict[str, _Params] = {}
    for relation in said.relations:
        ends = [said.entity(named) for named in (relation.source, relation.target)]
        source, target = (mention(end.type, end.name) for end in ends)
        fact = relation.fact or _sentence(relation.type, *ends)
        valid_from = None if relation.valid_from is None else utc_text(relation.valid_from)
        found = terms(fact)
        id = derived_id("relation", source, relation.type, target, _normal(relation.fact), valid_from or "")
        relations[id] = {
            "id": id,
            "name": relation.type,
            "source": source,
            "target": target,
            "fact": fact,
            "valid_from": valid_from,
            "invalid_at": None if relation.valid_to is None else utc_text(relation.valid_to),
            "terms": " ".join(found),
            "length": len(found),
        }
    for entity in said.entities:  # behind the relations: a name that is written out in full is the one to show
        id = mention(entity.type, entity.name)
        if entity.attributes:
            described.setdefault(id, {"id": id, "attributes": {}})["attributes"].update(entity.attributes)
    if entities:
        yield "entities", {**common, **_common(wide), "entities": list(entities.values())}
    if described:
        for id in ("described", "attributes", "late"):
            yield id, {**common, "described": list(described.values())}
    if relations:
        times = {"reference_time": reference_time, "relations": list(relations.values())}
        yield "relations", {**common, **_common(wide), **times}


def _common(scope: Mapping[str, str | None]) -> _Params:
    scopes = " ".join(scope_term(name, value) for name in SCOPES if (value := scope.get(name)) is not None)
    return {name: scope.get(name) for name in SCOPES} | {"scopes": scopes}


def _wide(scope: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return whose the entities of an episode are: as with facts of memories, everybody's but the thread's."""
    beyond = any(scope.get(name) for name in SCOPES if name != "thread_id")
    return {name: None if beyond and name == "thread_id" else scope.get(name) for name in SCOPES}


def _owner(scope: Mapping[str, str | None]) -> str:
    return derived_id("scope", *(scope.get(name) or "" for name in SCOPES))


def _rank(reference_time: str, id: str) -> str:
    return f"{reference_time} {id}"


def _normal(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _sentence(type: str, source: EntityName, target: EntityName) -> str:
    return f"{source.name} {type.replace('_', ' ').lower()} {target.name}"
