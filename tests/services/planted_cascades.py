"""Stories of one user each, told by structured episodes, of which it is known what holds in the end.

What holds is written beside each story by hand, not computed: a person leaves a firm, and what depended on it is gone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final, Literal

from tests.services.planted_stories import Said, Story

# A story says relations: ``a WORKS_FOR acme``, with ``until 9`` or ``from 3`` behind it.
type Kind = Literal["cascade", "absence", "mark", "kept", "taken back", "value", "other words"]

ONTOLOGY: Final = """\
entity_types:
  Person: A human being.
  Firm: A company.
  Place: A city, a room or a parking place.
  Thing: A badge, a laptop, a phone.
edge_types:
  LIVES_IN: Has a home there.
  MOVED_TO: Took a home there.
  WORKS_FOR: Is paid by.
  EMPLOYS: Pays.
  MARRIED_TO: Is the spouse of.
  SITS_IN: Has a desk there.
  HAS_BADGE: Wears it at work.
  OPENS: The badge opens it for this person.
  USES: Was given it for work.
  NEIGHBOUR_OF: Lives next door to.
  KNOWS: Has met.
edge_rules:
  - {type: LIVES_IN, single_valued: true, aliases: [RESIDES_IN]}
  - {type: MOVED_TO, transition: LIVES_IN}
  - {type: WORKS_FOR, single_valued: true}
  - {type: EMPLOYS, inverse_of: WORKS_FOR}
  - {type: MARRIED_TO, symmetric: true, single_valued: true}
  - {type: SITS_IN, depends_on: WORKS_FOR, single_valued: true}
  - {type: HAS_BADGE, depends_on: SITS_IN}
  - {type: OPENS, depends_on: HAS_BADGE}
  - {type: USES, depends_on: WORKS_FOR, when_ended: mark}
  - {type: NEIGHBOUR_OF, depends_on: LIVES_IN}
"""
_PEOPLE: Final = ("Ada", "Ben", "Clara", "David", "Eva", "Hugo")
_FIRMS: Final = ("Acme", "Borealis", "Globex", "Initech")
_CITIES: Final = ("Oslo", "Bergen", "Rome", "Porto")
_TYPES: Final = {
    **dict.fromkeys(("WORKS_FOR",), ("Person", "Firm")), "EMPLOYS": ("Firm", "Person"),
    **dict.fromkeys(("MARRIED_TO", "NEIGHBOUR_OF", "KNOWS"), ("Person", "Person")),
    **dict.fromkeys(("LIVES_IN", "RESIDES_IN", "MOVED_TO", "SITS_IN", "OPENS"), ("Person", "Place")),
    **dict.fromkeys(("HAS_BADGE", "USES"), ("Person", "Thing")),
}  # fmt: skip


_DESK: Final = ((1, "{a} WORKS_FOR {f}"), (2, "{a} SITS_IN room 3"), (3, "{a} HAS_BADGE badge 7"),
                (4, "{a} OPENS lab 2"))  # fmt: skip
_FORMS: Final[Sequence[tuple[Kind, Sequence[Said], Sequence[str], Sequence[str]]]] = (
    # What depends on something goes with it, through a chain
    ("cascade", (*_DESK[:2], (5, "{a} WORKS_FOR {g}")), ("{a} WORKS_FOR {g}",), ()),
    ("cascade", (*_DESK, (5, "{a} WORKS_FOR {g}")), ("{a} WORKS_FOR {g}",), ()),
    ("cascade", (*_DESK, (5, "{a} SITS_IN room 4")), ("{a} WORKS_FOR {f}", "{a} SITS_IN room 4"), ()),
    ("cascade", ((1, "{a} LIVES_IN {c}"), (2, "{a} NEIGHBOUR_OF {b}"), (5, "{a} MOVED_TO {d}")),
     ("{a} MOVED_TO {d}", "{a} LIVES_IN {d}"), ()),
    ("cascade", ((3, "{a} WORKS_FOR {f}"), (1, "{a} SITS_IN room 3"), (2, "{a} HAS_BADGE badge 7"),
                 (8, "{g} EMPLOYS {a}")), ("{a} WORKS_FOR {g}",), ()),
    ("cascade", (*_DESK, (5, "{a} WORKS_FOR {g}"), (6, "{a} SITS_IN room 9"), (7, "{a} HAS_BADGE badge 8")),
     ("{a} WORKS_FOR {g}", "{a} SITS_IN room 9", "{a} HAS_BADGE badge 8"), ()),
    ("cascade", ((1, "{a} LIVES_IN {c}"), (2, "{a} NEIGHBOUR_OF {b}"), (3, "{a} NEIGHBOUR_OF {e}"),
                 (5, "{a} RESIDES_IN {d}"), (6, "{a} NEIGHBOUR_OF {e} from 6")),
     ("{a} LIVES_IN {d}", "{a} NEIGHBOUR_OF {e}"), ()),
    # Nothing takes its place
    ("absence", (*_DESK, (5, "{a} WORKS_FOR {f} until 5")), (), ()),
    ("absence", (*_DESK[1:], (5, "{a} WORKS_FOR {f} from 1 until 5")), (), ()),
    ("absence", (*_DESK[:3], (6, "{a} SITS_IN room 3 until 6")), ("{a} WORKS_FOR {f}",), ()),
    ("absence", ((1, "{a} LIVES_IN {c}"), (2, "{a} NEIGHBOUR_OF {b}"), (5, "{a} LIVES_IN {c} until 4")), (), ()),
    ("absence", (*_DESK, (5, "{a} HAS_BADGE badge 7 until 5")), ("{a} WORKS_FOR {f}", "{a} SITS_IN room 3"), ()),
    # What is only marked
    ("mark", ((1, "{a} WORKS_FOR {f}"), (2, "{a} USES laptop 4"), (5, "{a} WORKS_FOR {g}")),
     ("{a} WORKS_FOR {g}", "{a} USES laptop 4"), ("{a} USES laptop 4",)),
    ("mark", ((1, "{a} WORKS_FOR {f}"), (2, "{a} USES laptop 4"), (5, "{a} WORKS_FOR {f} until 5")),
     ("{a} USES laptop 4",), ("{a} USES laptop 4",)),
    # What does not depend on it stays
    ("kept", (*_DESK, (5, "{b} WORKS_FOR {g}"), (6, "{b} WORKS_FOR {f}")),
     ("{a} WORKS_FOR {f}", "{a} SITS_IN room 3", "{a} HAS_BADGE badge 7", "{a} OPENS lab 2", "{b} WORKS_FOR {f}"), ()),
    ("kept", ((1, "{a} WORKS_FOR {f}"), (2, "{a} KNOWS {b}"), (2, "{a} LIVES_IN {c}"), (5, "{a} WORKS_FOR {g}")),
     ("{a} WORKS_FOR {g}", "{a} KNOWS {b}", "{a} LIVES_IN {c}"), ()),
    ("kept", ((1, "{a} WORKS_FOR {f}"), (3, "{a} WORKS_FOR {g}"), (4, "{a} SITS_IN room 3"), (5, "{a} KNOWS {b}"),
              (6, "{a} SITS_IN room 3")), ("{a} WORKS_FOR {g}", "{a} SITS_IN room 3", "{a} KNOWS {b}"), ()),
    ("kept", ((2, "{a} HAS_BADGE badge 7"), (3, "{a} OPENS lab 2"), (5, "{a} LIVES_IN {c}"), (6, "{a} LIVES_IN {d}")),
     ("{a} HAS_BADGE badge 7", "{a} OPENS lab 2", "{a} LIVES_IN {d}"), ()),
    # An end that was a mistake
    ("taken back", (*_DESK, (5, "{a} WORKS_FOR {f} until 5"), (6, "{a} WORKS_FOR {f}")),
     ("{a} WORKS_FOR {f}", "{a} SITS_IN room 3", "{a} HAS_BADGE badge 7", "{a} OPENS lab 2"), ()),
    ("taken back", (*_DESK, (5, "{a} SITS_IN room 3 until 5"), (6, "{a} SITS_IN room 3")),
     ("{a} WORKS_FOR {f}", "{a} SITS_IN room 3", "{a} HAS_BADGE badge 7", "{a} OPENS lab 2"), ()),
    # One value at a time
    ("value", ((1, "{a} LIVES_IN {c}"), (5, "{a} LIVES_IN {d}")), ("{a} LIVES_IN {d}",), ()),
    ("value", ((1, "{a} LIVES_IN {c}"), (3, "{a} LIVES_IN {d}"), (5, "{a} LIVES_IN {c}")), ("{a} LIVES_IN {c}",), ()),
    ("value", ((1, "{a} LIVES_IN {c}"), (2, "{b} LIVES_IN {d}"), (3, "{a} LIVES_IN {c}")),
     ("{a} LIVES_IN {c}", "{b} LIVES_IN {d}"), ()),
    ("value", ((1, "{a} MARRIED_TO {b}"), (5, "{e} MARRIED_TO {a}")), ("{e} MARRIED_TO {a}",), ()),
    ("value", ((1, "{a} MARRIED_TO {b}"), (5, "{b} MARRIED_TO {e}")), ("{b} MARRIED_TO {e}",), ()),
    ("other words", ((1, "{a} RESIDES_IN {c}"), (5, "{a} MOVED_TO {d}")), ("{a} MOVED_TO {d}", "{a} LIVES_IN {d}"), ()),
    ("other words", ((1, "{f} EMPLOYS {a}"), (2, "{a} WORKS_FOR {f}"), (5, "{g} EMPLOYS {a}")),
     ("{a} WORKS_FOR {g}",), ()),
    ("other words", ((1, "{a} MARRIED_TO {b}"), (2, "{b} MARRIED_TO {a}")), ("{a} MARRIED_TO {b}",), ()),
)  # fmt: skip


def planted(seed: int = 43, each: int = 9) -> list[Story]:
    """Return ``each`` stories of each form, with names of their own: 63 cascades and 45 absences among 252."""
    rng = random.Random(seed)
    stories: list[Story] = []
    for kind, said, holds, doubted in _FORMS:
        for _ in range(each):
            a, b, e = rng.sample(_PEOPLE, 3)
            f, g = rng.sample(_FIRMS, 2)
            c, d = rng.sample(_CITIES, 2)
            named = {"a": a, "b": b, "e": e, "f": f, "g": g, "c": c, "d": d}
            stories.append(Story(
                len(stories), kind, [(day, text.format(**named)) for day, text in said],
                frozenset(_stored(text.format(**named)) for text in holds),
                frozenset(text.format(**named) for text in doubted),
            ))  # fmt: skip
    return stories


def _stored(text: str) -> str:
    source, type, target = text.split(" ", 2)
    if type == "MARRIED_TO" and target < source:
        source, target = target, source
    return f"{source} {type} {target}"


def content_of(text: str, moment: Any) -> dict[str, Any]:
    """Return the structure of an episode that says a relation; ``moment`` makes a time of a day."""
    (*words,) = text.split(" ")
    times: dict[str, str] = {}
    while words[-2] in {"from", "until"}:
        times["valid_from" if words[-2] == "from" else "valid_to"] = moment(int(words[-1]))
        del words[-2:]
    source, type, target = words[0], words[1], " ".join(words[2:])
    of_source, of_target = _TYPES[type]
    entities = [{"type": of_source, "name": source}, {"type": of_target, "name": target}]
    return {"entities": entities, "relations": [{"type": type, "source": source, "target": target, **times}]}
