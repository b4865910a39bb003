"""The AsyncAPI document: the channels of the bus and their messages, from the workers' point of view.

``asyncapi_channels.json`` describes the channels on each kind of bus. The payload schemas are JSON Schema 2020-12
files beside the document, because AsyncAPI's own dialect stops at draft 7. The document names no servers: each
deployment has its own.
"""

from __future__ import annotations

import json
from importlib.resources import files
from string import Template
from typing import Any, Final

import yaml

from graphweft_contracts import channels, wire
from graphweft_contracts.events import registered_payloads

_JSON_SCHEMA: Final = "application/schema+json;version=draft-2020-12"
_HEADER: Final = "# Generated from graphweft_contracts; renew with: make generate\n"


def document() -> dict[str, Any]:
    """Return the AsyncAPI 3.0 document; its payload references are relative to the file ``asyncapi.yaml``."""
    events = [*registered_payloads(), "event"]
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "graphweft",
            "version": wire.VERSION,
            "description": "Events of agents and their memories become a graph, and the graph comes back as context.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": _channels(events),
        "operations": _operations(events),
        "components": {"messages": _messages()},
    }


def render() -> str:
    """Return the document as YAML."""
    return _HEADER + yaml.safe_dump(document(), sort_keys=False, allow_unicode=True, width=120)


def _channels(events: list[str]) -> dict[str, Any]:
    names = {name: value for name, value in vars(channels).items() if name.isupper()}
    names["CONTEXT_REPLIES"] = channels.context_replies("{client}", "{app}")
    names["FIRST_REPLIES_PARTITION"] = channels.context_replies_partition(0)
    text = files("tools").joinpath("asyncapi_channels.json").read_text(encoding="utf-8")
    found: dict[str, dict[str, Any]] = json.loads(Template(text).substitute(names))
    messages = {
        "events": events,
        "contextRequests": ["context_request"],
        "contextReplies": ["context_reply"],
        "deadLetters": ["dead_letter"],
    }
    return {name: {**channel, "messages": _listed(messages[name])} for name, channel in found.items()}


def _operations(events: list[str]) -> dict[str, Any]:
    return {
        "applyEvents": {
            "action": "receive",
            "channel": {"$ref": "#/channels/events"},
            "summary": "The mutation worker turns events into graph changes by the mutation rules.",
            "messages": _named("events", events),
        },
        "answerContextRequests": {
            "action": "receive",
            "channel": {"$ref": "#/channels/contextRequests"},
            "summary": "The injection responder answers with the context that is ready before the deadline.",
            "messages": _named("contextRequests", ["context_request"]),
            "reply": {
                "channel": {"$ref": "#/channels/contextReplies"},
                "messages": _named("contextReplies", ["context_reply"]),
            },
        },
        "keepDeadLetters": {
            "action": "send",
            "channel": {"$ref": "#/channels/deadLetters"},
            "summary": "The mutation worker keeps what it could not apply, with the reason.",
            "messages": _named("deadLetters", ["dead_letter"]),
        },
    }


def _messages() -> dict[str, Any]:
    payloads = registered_payloads()
    summaries = {name: (payload.__doc__ or "").partition("``: ")[2] for name, payload in payloads.items()}
    return {
        **{name: _event(name, summary[:1].upper() + summary[1:]) for name, summary in summaries.items()},
        "event": _event("event", "An event of any other type; rules may match it too."),
        "context_request": _correlated(
            "context_request", "Asks for the context of one agent's next turn, or for one search."
        ),
        "context_reply": _correlated("context_reply", "The context that is ready, and the reason for what is missing."),
        "dead_letter": _message("dead_letter", "An event, or one mutation of it, without effect on the graph."),
    }


def _event(name: str, summary: str) -> dict[str, Any]:
    """Return the message of a CloudEvent in structured mode; the fields other than ``data`` are its headers."""
    content_type = wire.STRUCTURED.decode()
    return {
        **_message(name, summary, content_type),
        "headers": {
            "type": "object",
            "required": [wire.CONTENT_TYPE.decode()],
            "properties": {wire.CONTENT_TYPE.decode(): {"type": "string", "const": content_type}},
        },
    }


def _correlated(name: str, summary: str) -> dict[str, Any]:
    return {**_message(name, summary), "correlationId": {"location": "$message.payload#/id"}}


def _message(name: str, summary: str, content_type: str = "application/json") -> dict[str, Any]:
    return {
        "name": name,
        "summary": summary,
        "contentType": content_type,
        "payload": {"schemaFormat": _JSON_SCHEMA, "schema": {"$ref": f"./schemas/{name}.json"}},
    }


def _listed(names: list[str]) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/messages/{name}"} for name in names}


def _named(channel: str, names: list[str]) -> list[dict[str, str]]:
    return [{"$ref": f"#/channels/{channel}/messages/{name}"} for name in names]
