"""What an extractor is: it reads a text and says what there is to know in it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from graphweft_contracts import Permanent, Transient
from graphweft_contracts.episodes import EpisodeType, Structure
from graphweft_rules.ontologies import Ontology


class ExtractorUnavailable(Transient):
    """The extractor reads no episode at all for now: nothing is said about the one that it was given."""


class ExtractionFailed(Permanent):
    """This episode was not read. Models answer differently each time, so a few more tries are worth it.

    The message says what went wrong and never what the episode or the model says.
    """

    def __init__(self, message: str, *, reason: Literal["extraction_failed", "timeout"] = "extraction_failed") -> None:
        super().__init__(message)
        self.reason: Literal["extraction_failed", "timeout"] = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEpisode:
    """An episode that does not say itself what there is to know."""

    text: str
    episode_type: EpisodeType
    reference_time: datetime
    source_description: str = ""
    ontology: Ontology | None = None
    """None: entities are of type ``Entity``, and relations of any type."""


class Extractor(Protocol):
    """Reads episodes, several at a time in one event loop. The creator closes it."""

    @property
    def model(self) -> str:
        """The name of the model, as events have it: 1 to 256 characters."""
        ...

    async def extract(self, episode: TextEpisode) -> Structure:
        """Return what there is to know, as the episode's ontology has it; it always fits into one event.

        Asks once and does not try again by itself. Raises ``ExtractorUnavailable`` or ``ExtractionFailed``. Writes
        nothing anywhere. It may be cancelled.
        """
        ...

    async def check(self) -> None:
        """Ask for something beyond suspicion; raises ``ExtractorUnavailable`` when that fails, too.

        So an episode is blamed only while the extractor reads others.
        """
        ...

    async def aclose(self) -> None:
        """Let go of connections; a second call does nothing."""
        ...
