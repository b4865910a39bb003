"""Splits records into messages and other fields.

A record is a JSON array of messages, or an object with ``messages`` and other fields. SWE-agent names them ``history``,
tau-bench ``traj`` and Gemini ``contents``; the entries of a session of Claude Code, one a line, are one record. A line,
or a ``.json`` file, is one JSON value and holds one record or an array of records.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NoReturn

from pydantic import JsonValue

from graphweft_contracts import Permanent

_SURROGATE_ESCAPE: Final = re.compile(r"\\u[dD][89a-fA-F]")

_MESSAGES: Final = ("messages", "history", "traj", "contents", "input")
"""Fields with the messages of a record, the most common first."""


class ImportProblem(Permanent):
    """A record cannot be imported. The text names the file, the record, the message and the next step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """One record of a file: its raw messages and its other fields."""

    place: str
    """The place of the record, for errors: ``runs.jsonl:12`` or ``runs.json, record 3``."""
    number: int
    """The record's position in its file, from 0."""
    messages: tuple[JsonValue, ...]
    fields: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])


def parse_json(text: str) -> JsonValue:
    """Parse strict JSON. Raises ``ValueError`` for invalid JSON, NaN, infinities and JSON that is nested too deeply.

    1e400, which Python reads as infinity, is refused too.

    Halves of surrogate pairs (an emoji that a length limit has cut in two) become U+FFFD: UTF-8 cannot encode them.
    """
    try:
        value: JsonValue = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error
    return _whole_characters(value) if _SURROGATE_ESCAPE.search(text) else value


def records_in(value: JsonValue, *, place: str) -> Iterator[tuple[str, JsonValue]]:
    """Yield each record of one JSON value with its place. An array of messages is one record."""
    if isinstance(value, list) and not (value and _is_message(value[0])):
        for number, record in enumerate(value, start=1):
            yield f"{place}, record {number}", record
    else:
        yield place, value


def run_of(record: JsonValue, *, place: str, number: int) -> RecordedRun:
    """Split a record into messages and other fields. Raises ``ImportProblem`` when it has no messages."""
    match record:
        case list():
            messages, fields = record, dict[str, JsonValue]()
        case dict():
            kept = next((name for name in _MESSAGES if isinstance(record.get(name), list)), "messages")
            fields = {name: value for name, value in record.items() if name != kept}
            found = record.get(kept)
            if not isinstance(found, list):
                raise ImportProblem(
                    f"{place}: the record has no array 'messages' (its fields: {named(record)}); "
                    "write one object with 'messages' for each run, or only the array of messages"
                )
            messages = found
        case _:
            raise ImportProblem(
                f"{place}: expected a record, an array of messages or an object with 'messages'; "
                f"found {type(record).__name__}"
            )
    if not messages:
        raise ImportProblem(f"{place}: the record has no messages: remove it from the file")
    return RecordedRun(place=place, number=number, messages=tuple(messages), fields=fields)


def named(names: Mapping[str, JsonValue]) -> str:
    """Return the names for an error text, or ``none``."""
    return ", ".join(repr(name) for name in names) or "none"


def session_of(value: JsonValue) -> str | None:
    """Return the session of an entry in a transcript of Claude Code, or None for another value."""
    if not isinstance(value, dict) or "messages" in value or not isinstance(value.get("type"), str):
        return None
    session = value.get("sessionId")
    return session if isinstance(session, str) and session else None


def _is_message(value: JsonValue) -> bool:
    return isinstance(value, dict) and "role" in value


def _refuse(constant: str) -> NoReturn:
    msg = f"{constant} is not JSON"
    raise ValueError(msg)


def _finite(number: str) -> float:
    if math.isinf(value := float(number)):
        msg = "a number is beyond 1.8e308"
        raise ValueError(msg)
    return value


def _whole_characters(value: JsonValue) -> JsonValue:
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case list():
            return [_whole_characters(item) for item in value]
        case dict():
            return {str(_whole_characters(name)): _whole_characters(item) for name, item in value.items()}
        case _:
            return value
