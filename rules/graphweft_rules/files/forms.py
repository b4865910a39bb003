"""The language in which the formats of files are declared: each key once, with its kind, its bounds and its meaning.

``form_reader`` reads files by these declarations. The JSON Schemas for editors and the reference of the docs are
made from them. What spans several keys, such as the parameters of a query, is up to the reader of a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Pattern:
    """A regular expression for a text, in the syntax of JSON Schema."""

    regex: str
    fault: str
    """What editors say of another text."""


NOT_BLANK: Final = Pattern(r"[^ \t\r\n]", "It is empty: write a text, or remove the key if it is optional.")


@dataclass(frozen=True, slots=True)
class Key:
    """A key. One that is of no kind below is checked by the reader of the file, and by editors as ``editor`` says."""

    meaning: str
    """A sentence for people who write the file, in Markdown."""
    _: KW_ONLY
    required: bool = False
    default: Any = None
    """The value without the key, for people; None: there is none, or ``meaning`` says it."""
    wanted: str = ""
    """How findings describe a value of the right kind; empty: as usual for the kind."""
    shared: str = ""
    """A name under which the JSON Schema defines the key once, for several forms; empty: it is written in each."""
    editor: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further keywords of JSON Schema."""


@dataclass(frozen=True, slots=True)
class TextKey(Key):
    """A text that is not blank. Only editors check the pattern."""

    pattern: Pattern = NOT_BLANK
    names: tuple[str, ...] = ()
    """All texts that are allowed; empty: any."""


@dataclass(frozen=True, slots=True)
class NumberKey(Key):
    """A whole number within bounds."""

    least: int | None = None
    most: int | None = None


@dataclass(frozen=True, slots=True)
class FlagKey(Key):
    """True or false."""


@dataclass(frozen=True, slots=True)
class SectionKey(Key):
    """A mapping, which the reader of the file reads by its form."""

    _: KW_ONLY
    form: Form


@dataclass(frozen=True, slots=True)
class ListKey(Key):
    """A list of texts, of mappings, or of either. The reader of the file reads the mappings by their form."""

    text: TextKey | None = None
    form: Form | None = None
    may_be_empty: bool = False
    alone: bool = False
    """Whether one text may stand for a list of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The keys of a mapping."""

    name: str
    """As findings say it: ``a mutation rule``."""
    meaning: str
    keys: Mapping[str, Key]
    one_of: tuple[str, ...] = ()
    """Exactly one of these keys must be there."""
    any_of: tuple[str, ...] = ()
    """At least one of these keys must be there."""
    needs: Mapping[str, str] = field(default_factory=dict[str, str])
    """By key: another key, without which it says nothing."""
    editor: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further keywords of JSON Schema."""

    @property
    def required(self) -> frozenset[str]:
        """The keys that must be there."""
        return frozenset(name for name, key in self.keys.items() if key.required)
