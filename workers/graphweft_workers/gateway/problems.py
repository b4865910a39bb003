"""What is wrong with a request, as ``application/problem+json`` (RFC 9457): what, where, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.responses import JSONResponse

from graphweft_workers.gateway.patterns import IN_WORDS

MEDIA_TYPE: Final = "application/problem+json"
MOST_FAULTS: Final = 20
"""So many are named: what a body may hold of them has no end."""

type Loc = tuple[str | int, ...]
"""Steps into a body."""


class Problem(Exception):
    """Ends the handling of a request with an answer that says why.

    ``code`` is the bounded name of the kind of problem; ``detail`` is for people and never quotes the request's values.
    ``faults`` have a ``detail`` and either a ``pointer`` into the body (RFC 6901, as a URI fragment) or a ``header``.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        faults: Sequence[Mapping[str, str]] = (),
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.faults = faults
        self.headers = headers
        self.more = more

    def response(self) -> JSONResponse:
        """Return the answer."""
        content: dict[str, Any] = {
            "type": f"urn:graphweft:problem:{self.code}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            **self.more,
        }
        if self.faults:
            content["errors"] = [dict(fault) for fault in self.faults[:MOST_FAULTS]]
        return JSONResponse(content, self.status, self.headers, MEDIA_TYPE)


def pointer(*steps: str | int) -> str:
    """Return the JSON pointer to a place in the body, as a URI fragment."""
    escaped = (quote(str(step).replace("~", "~0").replace("/", "~1"), safe="~") for step in steps)
    return "#" + "".join(f"/{step}" for step in escaped)


def faults_of(
    error: ValidationError, *above: str | int, place: Callable[[Loc], Loc] = lambda loc: loc
) -> list[dict[str, str]]:
    """Return the first faults of a body: each stands below ``above``, where ``place`` says."""
    return [
        {"pointer": pointer(*above, *place(fault["loc"])), "detail": _detail(fault)}
        for fault in error.errors(include_input=False, include_url=False)[:MOST_FAULTS]
    ]


def _detail(fault: ErrorDetails) -> str:
    if fault["type"] == "string_pattern_mismatch":
        return IN_WORDS.get(fault.get("ctx", {}).get("pattern", ""), "it has not the form that the contract asks for")
    return fault["msg"].removeprefix("Value error, ")
