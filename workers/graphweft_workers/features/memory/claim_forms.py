"""What the words of claims are in a language: see ``Language``. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimForm:
    """A form of words that is a claim as a whole: the group ``what`` is the object, and ``who`` the subject."""

    words: re.Pattern[str]
    predicate: str
    holds: bool = True
    is_name: bool = False
    """Whether the object is a name, which begins with a capital letter."""
    is_kind: bool = False
    """Whether the object is one of its kind, without what is vague of it: "a small dog called Max" is the dog Max, and
    "a red bicycle" another one than a blue one. The group ``name`` is its name."""
    is_place: bool = False
    """Whether the object is a known place: who moved to Linux lives where they did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """The words of a language."""

    lead: re.Pattern[str]
    """Words before a claim, which say nothing of it."""
    tail: re.Pattern[str]
    """Words of time behind a claim."""
    detail: re.Pattern[str]
    """Words by which an object is more than a thing: "nuts with shells"."""
    undone: re.Pattern[str]
    """Words by which another part of the sentence may take a claim back."""
    patterns: Sequence[ClaimForm]
    own: re.Pattern[str]
    """Words of the first person."""
    empty: re.Pattern[str]
    """The beginning of sentences that are about the conversation, or polite."""
    unsure: re.Pattern[str]
    """Words of what is past, to come, wished or doubted."""
    passing: re.Pattern[str]
    """Words of what somebody has for a moment ("I have a question"): that part of a sentence makes no claim."""
    parts: re.Pattern[str]
    """What is between two parts of a sentence that each say something in the first person."""
    aside: re.Pattern[str]
    """The beginning of what is told beside a claim, in the same part of a sentence."""
    one_of_a_kind: frozenset[str]
    """Relatives and others of whom a user has one."""
    bases: Mapping[str, str]
    """What somebody does, by the form that it has behind "stopped"."""
