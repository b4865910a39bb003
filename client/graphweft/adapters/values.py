"""Values of runtimes in the form that the events of all adapters use."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from graphweft.json_copy import json_copy
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_contracts.events import ModelCallComplete, data_of, known

MAX_CHARACTERS: Final = 200_000
"""Characters copied from one text; the bus refuses an event of a megabyte."""
_MAX_VALUES: Final = 20_000
"""Values copied from one callback: a few tens of milliseconds at worst."""
IDS: Final = ("app_id", "chat_id", "workflow_name", "user_id")
"""The context variables that identify a chat."""
_ERROR_TEXT: Final = re.compile(r"\s*error(?![\w-])", re.IGNORECASE)
"""``Error: no seats`` and ``error`` are errors; ``Errors: 0`` and ``error-free`` are not."""


def bounded_copy(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a callback's values that JSON can represent, of limited size."""
    return json_copy(values, max_values=_MAX_VALUES, max_characters=MAX_CHARACTERS)


def with_ids(variables: dict[str, Any], ids: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables, with each of the ids that they lack.

    Runtimes write "" for an unknown id. An app that is "" stays so: another one would be another tenant.
    """
    lacking = {name for name in ids if not variables.get(name) and not (name == "app_id" and variables.get(name) == "")}
    return {**variables, **{name: ids[name] for name in lacking}}


def variables_of(context: Any) -> dict[str, Any]:
    """Return a caller's context object as variables: items of a mapping, fields of a dataclass or model, or the ids.

    Private fields, and fields that are not data, such as connections and pydantic's secrets, are excluded.
    """
    try:
        if context is None:
            return {}
        if issubclass(context.__class__, Mapping):
            return {str(name): value for name, value in context.items()}
        kind: Any = context.__class__
        fields = [one.name for one in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
        names = [*IDS, *fields, *getattr(kind, "model_fields", ())]
        values = {name: getattr(context, name, None) for name in dict.fromkeys(names) if not name.startswith("_")}
        return {name: value for name, value in values.items() if _is_data(value)}
    except Exception:  # noqa: BLE001 - an object of the user
        return {}


def _is_data(value: Any) -> bool:
    return isinstance(value, str | int | float | dict | list | tuple | set | frozenset)


def about_model(
    started_s: float | None,
    *,
    model: object = None,
    input_tokens: Any = None,
    output_tokens: Any = None,
    error: BaseException | None = None,
) -> dict[str, Any]:
    """Return the further fields of ``model.call_complete``, without those that are None or empty.

    ``started_s`` is a time of ``SYSTEM_CLOCK.monotonic``.
    """
    return data_of(
        ModelCallComplete,
        duration_ms=known(None if started_s is None else ms_since(started_s)),
        model=known(str(model) if model else None),
        input_tokens=known(input_tokens),
        output_tokens=known(output_tokens),
        error_type=known(None if error is None else type(error).__name__),
    )


def milliseconds(seconds: float) -> float:
    """Return a duration in the milliseconds of events."""
    return round(seconds * 1000, 3)


def ms_since(started_s: float) -> float:
    """Return the milliseconds since a time of ``SYSTEM_CLOCK.monotonic``."""
    return milliseconds(SYSTEM_CLOCK.monotonic() - started_s)


def parsed(arguments: Any) -> Any:
    """Return a model's arguments for a tool, parsed if they are JSON."""
    with contextlib.suppress(TypeError, ValueError):
        return json.loads(arguments)
    return arguments


def is_json(text: str) -> bool:
    """Return whether a text is a complete value of JSON."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def structured(text: str) -> Any:
    """Return the object or list in a text of JSON, or else the text. Numbers and words stay text."""
    return parsed(text) if text.lstrip().startswith(("{", "[")) else text


def error_text(error: BaseException) -> str:
    """Return an exception's message, or its type if the message is empty or cannot be read."""
    with contextlib.suppress(Exception):
        return str(error) or type(error).__name__
    return type(error).__name__


def error_in(result: Any) -> str | None:
    """Return the error that a tool's result reports, or None.

    An error is a text that begins with the word "error", or an object with a non-empty ``error``, or with ``isError``
    or ``is_error`` true (the flags of the Model Context Protocol and of Anthropic).
    """
    match result:
        case str() if _ERROR_TEXT.match(result):
            return result
        case {"error": str(text)} | {"error": {"message": str(text)}} if text:
            return text
        case {"error": error} if error:
            return "error"
        case {"isError": True} | {"is_error": True}:
            return "error"
        case _:
            return None
