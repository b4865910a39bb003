"""A model that compares statements: the protocol, and its errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from graphweft_contracts import Permanent, Transient
from graphweft_contracts.memory import Verdict

Choice = Verdict | Literal["unrelated"]
"""What a model may say of a candidate."""


class JudgeUnavailable(Transient):
    """The model is unreachable, busy or misconfigured; the statements are not the cause."""


class StatementsFailed(JudgeUnavailable):
    """The model fails for these statements while it answers others: a later try may succeed, and others can go on."""


class JudgementFailed(Permanent):
    """The model has no valid answer for these statements, though it has one for others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementText:
    """A statement as a model sees it."""

    id: str
    text: str
    time: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementVerdict:
    """What a model says of a candidate."""

    old: str
    """The id of the candidate."""
    verdict: Choice
    reason: str = ""


class StatementJudge(Protocol):
    """Compares statements. Belongs to one event loop; calls may run concurrently."""

    @property
    def model(self) -> str:
        """The name that is stored with verdicts."""
        ...

    async def judge(self, new: StatementText, candidates: Sequence[StatementText]) -> list[StatementVerdict]:
        """Return a verdict for each candidate, at least one.

        Raises ``JudgeUnavailable``, ``StatementsFailed`` and ``JudgementFailed``.
        """
        ...

    async def aclose(self) -> None:
        """Close connections. A second call does nothing."""
        ...
