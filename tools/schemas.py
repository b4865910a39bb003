"""JSON Schemas of all messages between processes, for runtimes in other languages.

The models are the source. They are not generated from schemas, because a schema cannot express validators such as the
one for extension names.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, StringConstraints, create_model
from pydantic.json_schema import GenerateJsonSchema

from graphweft_contracts.context import ContextReply, ContextRequest
from graphweft_contracts.dead_letters import DeadLetter
from graphweft_contracts.events import Event, Payload, registered_payloads

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def schemas() -> dict[str, dict[str, Any]]:
    """Return every schema by its name; the file is ``contracts/schemas/<name>.json``.

    Each schema is self-contained. ``wire.decode`` accepts every event that the schema accepts; readers must check
    formats such as ``date-time`` themselves.
    """
    found = {
        "event": _event(
            _with_payload(Payload), "Any event, also of a type of your own. `data.context` holds context variables."
        )
    }
    for name, payload in registered_payloads().items():
        found[name] = _event(_with_payload(payload, name), payload.__doc__ or name)
    for name, model in (
        ("context_request", ContextRequest),
        ("context_reply", ContextReply),
        ("dead_letter", DeadLetter),
    ):
        found[name] = model.model_json_schema(schema_generator=_Untitled)
    return {
        name: {"$schema": DIALECT, "$id": f"urn:graphweft:{name}", **schema} for name, schema in sorted(found.items())
    }


class _Untitled(GenerateJsonSchema):
    """Omits titles that only repeat the names of fields."""

    def field_title_should_be_set(self, schema: object) -> bool:
        return False


def _with_payload(payload: type[Payload], name: str | None = None) -> type[BaseModel]:
    """Return the envelope with a payload model, and with the event type ``name`` if given."""
    required = any(field.is_required() for field in payload.model_fields.values())
    fields: dict[str, Any] = {"data": (payload, ... if required else Field(default_factory=payload))}
    if name is not None:
        fields["type"] = (Literal[name], ...)
    if payload.chat_pattern is not None:
        fields["chatid"] = (
            Annotated[str, StringConstraints(min_length=1, pattern=payload.chat_pattern, max_length=256)],
            ...,
        )
    return create_model("Event" if name is None else f"{payload.__name__}Event", __base__=Event, **fields)


def _event(model: type[BaseModel], description: str) -> dict[str, Any]:
    return {**model.model_json_schema(schema_generator=_Untitled), "description": description}
