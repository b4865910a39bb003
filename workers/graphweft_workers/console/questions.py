"""The bodies of the console's requests that several pages share."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints

from graphweft_contracts.events import AppId

type Position = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}:[0-9]{1,18}(-[0-9]{1,18})?$")]


class Question(BaseModel):
    """A body without fields."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


def slow(seconds: float) -> str:
    """Return what to say of a question that took too long."""
    return (
        f"There was no answer within {seconds:g} s, so it was given up. If other pages fail too, `graphweft doctor` "
        "says which server does not answer. Otherwise ask for less, or use the command line."
    )


class AppQuestion(Question):
    """Names an app; None: that of the token, or all apps for an operator where the page can show all."""

    app: AppId | None = None
