"""``agent_memory_v1``, the built-in ontology: preferences, terminology, ownership and the state of projects.

A model reads the docstrings of the types; fields would cost more requests. Never change a type: old episodes are read
with it again. A new meaning needs a new schema (``agent_memory_v2``).
"""

from __future__ import annotations

from itertools import product
from typing import Final

from pydantic import BaseModel

from graphweft_workers.features.episodes.ontologies.ontology import Ontology

SCHEMA_ID: Final = "agent_memory_v1"


class Person(BaseModel):
    """A human being who works on something, decides or is asked.

    Named by a stable identifier where there is one: a handle or a hashed id rather than an e-mail address, a telephone
    number or an address.
    """


class Team(BaseModel):
    """A group of people that acts as one: a team, a department, an organisation, a company."""


class Agent(BaseModel):
    """A software agent or assistant that works for people, such as a coding assistant or a bot."""


class Workspace(BaseModel):
    """A place where work is done: a workspace, an editor's folder, a monorepo, an account, an environment."""


class Project(BaseModel):
    """A piece of work with an aim and a state: a product, a feature, a migration, a release, an initiative."""


class Component(BaseModel):
    """A technical thing that is built, run or used: a repository, service, library, module, file, API or database."""


class Preference(BaseModel):
    """A lasting wish or rule of somebody about how work is to be done, said so that it can be followed later.

    For example a style of code, a language, a tool to use or to avoid, a tone. Not a request for this moment only.
    """


class Term(BaseModel):
    """A word, name or abbreviation that has a meaning of its own here, such as a code name or a word of the domain."""


class Decision(BaseModel):
    """Something that was decided and holds until it is decided otherwise, with its reason where one is given."""


class Task(BaseModel):
    """Work that is to be done or has been done: a task, an issue, a pull request, a bug, an open question."""


class Status(BaseModel):
    """The state in which a project, component or task is, such as planned, in progress, blocked, released, done."""


class Credential(BaseModel):
    """A secret that gives access: a password, key, token, certificate, connection string. It is not remembered."""


class PassingDetail(BaseModel):
    """What means nothing after this conversation: greetings, line numbers, outputs of tools, temporary files, dates.

    It is not remembered.
    """


class Prefers(BaseModel):
    """Somebody wants work to be done in a way, from now on."""


class Means(BaseModel):
    """A term stands for something here."""


class AliasOf(BaseModel):
    """Another name for the same thing."""


class Owns(BaseModel):
    """Somebody is responsible for something and decides about it. It says who is asked, not who may do what."""


class WorksOn(BaseModel):
    """Somebody contributes to something without being responsible for it."""


class MemberOf(BaseModel):
    """Somebody belongs to a team."""


class PartOf(BaseModel):
    """Something belongs to something larger."""


class DependsOn(BaseModel):
    """Something needs another thing in order to work, to be built or to be finished."""


class Blocks(BaseModel):
    """Something keeps another thing from going on."""


class HasStatus(BaseModel):
    """Something is in a state, until it is in another one."""


class Decided(BaseModel):
    """Somebody made a decision."""


class AppliesTo(BaseModel):
    """A preference, decision or term holds for something, and not everywhere."""


class Supersedes(BaseModel):
    """Something takes the place of another thing, which holds no longer."""


_WHO: Final = ("Person", "Team", "Agent")
_WORK: Final = ("Project", "Component", "Task")
_PLACES: Final = ("Workspace", "Project", "Component")

_ENDS: Final[dict[str, tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]]] = {
    "PREFERS": ((_WHO, ("Preference", "Component")), (_PLACES, ("Preference",))),
    "MEANS": ((("Term",), ("Term", "Component", "Project", "Team", "Person", "Workspace", "Decision", "Task")),),
    "ALIAS_OF": tuple(
        (("Term", each), (each,)) for each in ("Term", "Person", "Team", "Agent", "Workspace", "Project", "Component")
    ),
    "OWNS": ((_WHO, (*_WORK, "Workspace", "Decision")),),
    "WORKS_ON": ((_WHO, (*_WORK, "Workspace")),),
    "MEMBER_OF": ((("Person", "Agent", "Team"), ("Team",)),),
    "PART_OF": (
        (_PLACES, _PLACES),
        (("Task",), ("Task", "Project", "Component")),
    ),
    "DEPENDS_ON": ((_WORK, (*_WORK, "Decision")),),
    "BLOCKS": (((*_WORK, "Decision"), _WORK),),
    "HAS_STATUS": ((_WORK, ("Status",)),),
    "DECIDED": ((_WHO, ("Decision",)),),
    "APPLIES_TO": ((("Preference", "Decision", "Term"), (*_PLACES, "Task", *_WHO)),),
    "SUPERSEDES": tuple(((each,), (each,)) for each in ("Preference", "Decision", "Term", "Project", "Component")),
}
"""Relation -> pairs of (source types, target types)."""


def _map() -> dict[tuple[str, str], tuple[str, ...]]:
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for name, pairs in _ENDS.items():
        for sources, targets in pairs:
            for ends in product(sources, targets):
                if name not in found.get(ends, ()):
                    found[ends] = (*found.get(ends, ()), name)
    return found


ONTOLOGY: Final = Ontology(
    schema_id=SCHEMA_ID,
    entity_types={
        model.__name__: model
        for model in (
            *(Person, Team, Agent, Workspace, Project, Component, Preference, Term, Decision, Task, Status),
            *(Credential, PassingDetail),
        )
    },
    edge_types={
        "PREFERS": Prefers,
        "MEANS": Means,
        "ALIAS_OF": AliasOf,
        "OWNS": Owns,
        "WORKS_ON": WorksOn,
        "MEMBER_OF": MemberOf,
        "PART_OF": PartOf,
        "DEPENDS_ON": DependsOn,
        "BLOCKS": Blocks,
        "HAS_STATUS": HasStatus,
        "DECIDED": Decided,
        "APPLIES_TO": AppliesTo,
        "SUPERSEDES": Supersedes,
    },
    edge_type_map=_map(),
    excluded_entity_types=("Credential", "PassingDetail"),
)
