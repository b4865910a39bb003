"""The protocol of extractors, which read entities and relations from text, and their errors."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol

from graphweft_contracts import Permanent, Transient
from graphweft_contracts.episodes import EpisodeType, Structure
from graphweft_workers.features.episodes.ontologies import Ontology

type FailureReason = Literal["extraction_failed", "timeout"]


class ExtractorUnavailable(Transient):
    """The extractor cannot read any episode at the moment; the episode is not the cause."""


class ExtractionFailed(Permanent):
    """This episode was not read. Another try may succeed, because models vary.

    The message quotes neither the episode nor the model.
    """

    def __init__(self, message: str, *, reason: FailureReason = "extraction_failed") -> None:
        super().__init__(message)
        self.reason: FailureReason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEpisode:
    """An episode without a structure of its own."""

    text: str
    episode_type: EpisodeType
    reference_time: datetime
    source_description: str = ""
    ontology: Ontology | None = None
    """None: entities have the type ``Entity``, and relations any type."""


class Extractor(Protocol):
    """Reads episodes, several at a time, in one event loop. The creator closes it."""

    @property
    def model(self) -> str:
        """The name of the model in events: 1 to 256 characters."""
        ...

    async def extract(self, episode: TextEpisode) -> Structure:
        """Return entities and relations that fit the ontology and one event. May be cancelled.

        Does not retry. Raises ``ExtractorUnavailable`` or ``ExtractionFailed``.
        """
        ...

    async def check(self) -> None:
        """Send a test request; raises ``ExtractorUnavailable`` if it fails."""
        ...

    async def aclose(self) -> None:
        """Close connections. A second call does nothing."""
        ...
