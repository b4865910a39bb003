"""Errors of a request as ``application/problem+json`` (RFC 9457): the fault, its place and the next step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, get_args
from urllib.parse import quote

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from graphweft_contracts import wire
from graphweft_workers.gateway.patterns import ERRORS

MEDIA_TYPE: Final = "application/problem+json"
MAX_FAULTS: Final = 20
"""A body can have any number of faults; only so many are reported."""

type Loc = tuple[str | int, ...]
"""Steps from the root of a body to a value."""


class Problem(Exception):
    """Ends the handling of a request with an error answer.

    ``code`` names the kind of problem, one of a fixed set. ``detail`` is for people and never quotes values of the
    request. ``faults`` have a ``detail`` and a place: a ``pointer`` into the body (RFC 6901, as a URI fragment) or a
    ``header``.
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
        """Return the HTTP response."""
        content: dict[str, Any] = {
            "type": f"urn:graphweft:problem:{self.code}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            **self.more,
        }
        if self.faults:
            content["errors"] = [dict(fault) for fault in self.faults[:MAX_FAULTS]]
        return JSONResponse(content, self.status, self.headers, MEDIA_TYPE)


def error_handlers(defect: str, details: Mapping[int, str] | None = None) -> dict[Any, Any]:
    """Return what answers errors of an application: problems, wrong paths and methods, a lost client, and ``defect``.

    ``details`` are those of statuses of wrong paths and methods, in place of the server's own.
    """

    async def problem(_: Request, error: Any) -> Response:
        return error.response()  # type: ignore[no-any-return]

    async def http(_: Request, error: Any) -> Response:
        code = {404: "not-found", 405: "method-not-allowed"}.get(error.status_code, "http")
        detail = (details or {}).get(error.status_code, str(error.detail))
        return Problem(error.status_code, code, detail, headers=error.headers).response()

    async def gone(_: Request, error: Any) -> Response:
        return Response(status_code=400)  # the client has disconnected

    async def defective(_: Request, error: Any) -> Response:
        # Starlette raises the error again after the answer, and the server logs it.
        return Problem(500, "defect", defect).response()

    return {Problem: problem, HTTPException: http, ClientDisconnect: gone, Exception: defective}


def pointer(*steps: str | int) -> str:
    """Return the JSON pointer to a value in the body, as a URI fragment."""
    escaped = (quote(str(step).replace("~", "~0").replace("/", "~1"), safe="~") for step in steps)
    return "#" + "".join(f"/{step}" for step in escaped)


def faults_of(
    error: ValidationError,
    *above: str | int,
    place: Callable[[Loc], Loc] = lambda loc: loc,
    model: type[BaseModel] | None = None,
) -> list[dict[str, str]]:
    """Return the first faults of a body. ``place`` maps a fault's location; the result lies below ``above``.

    A missing field has the given name beside it that is probably meant, and with ``model``, that of the body, an
    unknown name the field that is.
    """
    few = error.error_count() <= MAX_FAULTS  # a fault of many costs little
    found = error.errors(include_input=few, include_url=False)[:MAX_FAULTS]
    return [
        {
            "pointer": pointer(*above, *place(fault["loc"])),
            "detail": _detail(fault) + (wire.misspelt(fault, _fields_at(model, fault["loc"])) if few else ""),
        }
        for fault in wire.own_faults(found)
    ]


def _detail(fault: ErrorDetails) -> str:
    if fault["type"] == "string_pattern_mismatch":
        return ERRORS.get(fault.get("ctx", {}).get("pattern", ""), "it does not match the pattern of the contract")
    return fault["msg"].removeprefix("Value error, ")


def _fields_at(model: type[BaseModel] | None, loc: Loc) -> Collection[str]:
    """Return the names that the object has in which a value lies; none if that is not known."""
    for step in loc[:-1]:
        found = None if model is None else model.model_fields.get(str(step))
        given = () if found is None else (found.annotation, *get_args(found.annotation))
        model = next((each for each in given if isinstance(each, type) and issubclass(each, BaseModel)), None)
    return () if model is None else model.model_fields.keys()
