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
    is_change: bool = False
    """Whether it says that something has changed: of somebody who is known by a name alone, it ends what was so."""
    ends: tuple[str, ...] = ()
    """The predicates of which it ends what is named so, beside its own: "I sold the Golf", "Rex died"."""
    also: tuple[str, ...] = ()
    """The predicates of which nothing holds with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mood:
    """Words before what somebody does, which say that they do so no longer, or now."""

    words: re.Pattern[str]
    said: str
    """What stands in their place where somebody does it."""
    holds: bool


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
    moods: Sequence[Mood]
    no_more: re.Pattern[str]
    """Words behind what holds no longer, as a mood says."""
    at_times: re.Pattern[str]
    """Words of time behind which what does not hold may hold at others: "today"."""
    starts: re.Pattern[str]
    """The day from which on a sentence holds."""
    will: re.Pattern[str]
    """Words of what is to come, which a day makes sure."""
    speaker: re.Pattern[str]
    """The beginning of a part that says what the speaker does."""
    elided: re.Pattern[str]
    """The beginning of sentences that leave out who speaks: "Moved to Oslo." """
    named: re.Pattern[str]
    """The beginning of sentences without a word of the first person that may make a claim: of a name, a pet."""
    unnamed: re.Pattern[str]
    """Words that are no part of a name, and left out where names are compared."""
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
    clauses: re.Pattern[str]
    """What is between two parts of a sentence of which one alone may be a claim."""
    changed: re.Pattern[str]
    """Words of changes, by which a part of a sentence is looked at although the rest is not understood."""
    story: re.Pattern[str]
    """Words of a part that say that the other one is told, and not claimed, or holds only then."""
    aside: re.Pattern[str]
    """The beginning of what is told beside a claim, in the same part of a sentence."""
    one_of_a_kind: frozenset[str]
    """Relatives and others of whom a user has one."""
    many_of_a_kind: frozenset[str]
    """Those of whom a user has many."""
    relatives: Mapping[str, str]
    """Other names of relatives, who are known by them alone: "Mum"."""
    bases: Mapping[str, str]
    """What somebody does, by the form that it has behind "stopped"."""
