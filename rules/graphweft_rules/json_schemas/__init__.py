"""JSON Schemas of the files that people write, for editors: ``rules.json``, ``test.json``,
``ontology.json`` and ``questions.json`` in this folder.

``make generate`` writes them.
"""

from __future__ import annotations

from importlib import resources
from typing import Final, Literal, get_args

__all__ = ("KINDS", "Kind", "schema_text")

Kind = Literal["rules", "test", "ontology", "questions"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


def schema_text(kind: Kind) -> str:
    """Return the JSON Schema of a kind of file, as text."""
    return resources.files(__name__).joinpath(f"{kind}.json").read_text("utf-8")
