"""The format of ontology files."""

from __future__ import annotations

from typing import Any, Final

from graphweft_contracts.episodes import ANY_TYPE, TYPE_PATTERN
from graphweft_rules.files.forms import FlagKey, Form, Key, ListKey, Pattern, TextKey

_NAME: Final = Pattern(TYPE_PATTERN, "Not a type: use a letter, then letters, digits and '_', 64 at most.")
_NAMED: Final = {"pattern": _NAME.regex, "patternErrorMessage": _NAME.fault}


def _types(meaning: str, *, names: dict[str, Any], **more: int) -> Key:
    """Return a key with names of types, each with a description."""
    described = {"description": "A sentence that describes the type.", "type": ["string", "null"]}
    editor = {"type": "object", "propertyNames": names, "additionalProperties": described, **more}
    return Key(meaning, editor=editor)


def _type(meaning: str, *, required: bool = False) -> TextKey:
    """Return a key with the name of a type of relations."""
    return TextKey(meaning, pattern=_NAME, wanted="the name of a type in edge_types", required=required)


def _predicate(meaning: str) -> TextKey:
    """Return a key with a predicate of claims."""
    return TextKey(meaning, wanted="a predicate, such as works for", required=True)


def _names(meaning: str, example: str, *, required: bool = True) -> ListKey:
    """Return a key with one name of a type, or several."""
    return ListKey(
        meaning,
        text=TextKey("The name of a type.", pattern=_NAME),
        alone=True,
        wanted=f"the name of a type, or a list of them, {example}",
        required=required,
        may_be_empty=not required,
        editor=_NAMED,
    )


BETWEEN: Final = Form(
    name="an item of edge_type_map",
    meaning="Relations that are allowed between two types of entities.",
    keys={
        "source": _names(f"Where the relations start: entity types; `{ANY_TYPE}` is any.", "[Person]"),
        "target": _names(f"Where the relations end: entity types; `{ANY_TYPE}` is any.", "[Person]"),
        "edges": _names("The types of the relations.", "[OWNS]"),
    },
)
WHEN_ENDED: Final = TextKey(
    "What happens when its supports end: it ends too, or is marked as in doubt.", names=("end", "mark"), default="end"
)
EDGE_RULE: Final = Form(
    name="an item of edge_rules",
    meaning="What the relations of a type do to others.",
    keys={
        "type": _type("The type.", required=True),
        "single_valued": FlagKey("Whether a source has one target at a time: a later one ends the earlier."),
        "symmetric": FlagKey("Whether both directions say the same."),
        "inverse_of": _type("The type that says the same from the other end, and is stored instead."),
        "aliases": ListKey(
            "Other names of the type in episodes.", text=TextKey("The name of a type.", pattern=_NAME), alone=True,
            wanted="a name, or a list of them, [RESIDES_IN]", editor=_NAMED,
        ),
        "transition": _type("The type of the relation that begins with each one of this type, between the same ends."),
        "depends_on": _type("The type without which a relation does not hold: those of the same source support it."),
        "when_ended": WHEN_ENDED,
    },
    any_of=("single_valued", "symmetric", "inverse_of", "aliases", "transition", "depends_on"),
    needs={"when_ended": "depends_on"},
)  # fmt: skip
PREDICATE_RULE: Final = Form(
    name="an item of predicate_rules",
    meaning="What the claims of a predicate depend on.",
    keys={
        "predicate": _predicate("The predicate, as it is in the graph: has boss."),
        "depends_on": _predicate(
            "The predicate without which a claim does not hold: those of the same subject support it. One of which "
            "there is one at a time."
        ),
        "when_ended": WHEN_ENDED,
    },
)
ONTOLOGY: Final = Form(
    name="an ontology",
    meaning="The types of entities and relations that episodes may have, and what claims of users depend on. The name "
    "of the file is the id of the schema.",
    keys={
        "entity_types": _types(
            "The types of entities, each with a description, which the model reads.",
            names={**_NAMED, "not": {"const": ANY_TYPE}},
            minProperties=1,
        ),
        "edge_types": _types("The types of relations, each with a description, which the model reads.", names=_NAMED),
        "edge_type_map": ListKey(
            "Which relations are allowed between which entities. Without it, all are allowed.",
            form=BETWEEN,
            may_be_empty=True,
            wanted="a list of source, target and edges, each item with a dash",
        ),
        "edge_rules": ListKey(
            "What relations do to others: which end, and what else they say.",
            form=EDGE_RULE,
            may_be_empty=True,
            wanted="a list of types with their rules, each item with a dash",
        ),
        "predicate_rules": ListKey(
            "What claims of users depend on, in all conversations. In one file only.",
            form=PREDICATE_RULE,
            may_be_empty=True,
            wanted="a list of predicates with depends_on, each item with a dash",
        ),
        "excluded_entity_types": _names(
            "Entities of these types are dropped, with their relations.", "[Person]", required=False
        ),
    },
    any_of=("entity_types", "predicate_rules"),
)
