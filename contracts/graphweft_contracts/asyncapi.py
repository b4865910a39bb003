"""One AsyncAPI document that says what goes over which channel, as the workers see it.

The payload schemas are JSON Schema 2020-12 files beside the document, referred to as multi-format schemas, because
AsyncAPI's own dialect stops at draft 7. No servers are named: where the bus runs is a deployment's business.
"""

from __future__ import annotations

from typing import Any, Final

from graphweft_contracts import channels, wire
from graphweft_contracts.episodes import EPISODES
from graphweft_contracts.events import LIFECYCLE
from graphweft_contracts.memory import MEMORY

VERSION: Final = "1.2.0"
"""Version of what is on the wire, by semantic versioning; the package's own version goes its own way."""

_JSON_SCHEMA: Final = "application/schema+json;version=draft-2020-12"
_HEADER: Final = "# Generated from graphweft_contracts; renew with: python -m graphweft_contracts.schemas --write\n"


def document() -> dict[str, Any]:
    """Return the AsyncAPI 3.0 document; its payload references are relative to the file ``asyncapi.yaml``."""
    events = [*LIFECYCLE, *MEMORY, *EPISODES, "event"]
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "graphweft",
            "version": VERSION,
            "description": "Events of agents and their memories become a graph, and the graph comes back as context.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": _channels(events),
        "operations": _operations(events),
        "components": {"messages": _messages()},
    }


def render() -> str:
    """Return the document as YAML. Needs PyYAML, which a base install does not bring."""
    import yaml

    return _HEADER + yaml.safe_dump(document(), sort_keys=False, allow_unicode=True, width=120)


def _channels(events: list[str]) -> dict[str, Any]:
    return {
        "events": {
            "address": f"{channels.EVENTS}:{{partition}}",
            "title": "Events",
            "description": (
                "Redis streams, one a partition. The partition of an event is the CRC-32 of its key `appid/chatid`, "
                f"modulo the number that stands under `{channels.PARTITION_COUNT}`. Order holds within a key. An entry "
                "is a CloudEvent in structured mode: the fields `content-type` and `data`. On Kafka the topic "
                f"`{channels.EVENTS_TOPIC}`; the number to take the remainder by is that of the first record "
                f'`{{"partitions": N}}` in the topic `{channels.PARTITIONS_TOPIC}`, also where the events have more '
                "partitions since."
            ),
            "parameters": {"partition": {"description": "Number of the partition, from 0."}},
            "messages": _listed(events),
        },
        "contextRequests": {
            "address": channels.CONTEXT_REQUESTS,
            "title": "Context requests",
            "description": (
                "Redis stream; the field `data` holds the request as JSON. Responders share it as consumer group "
                f"`{channels.CONTEXT_GROUP}`; those that have requests in hand stand in the sorted set "
                f"`{channels.RESPONDERS}`, by the time in ms until which they are alive. On Kafka the topic "
                f"`{channels.CONTEXT_REQUESTS_TOPIC}`, shared in the same way; the value of a record is the request."
            ),
            "messages": _listed(["context_request"]),
        },
        "contextReplies": {
            "address": channels.context_replies("{client}"),
            "title": "Context replies",
            "description": (
                "Redis Pub/Sub, one channel for each asking process; its full name is `reply_to` of the request. A "
                "message is the request's id, a line feed, and the reply as JSON. On Kafka the same is a record of the "
                f"topic `{channels.CONTEXT_REPLIES_TOPIC}`, in the partition that `reply_to` names as "
                f"`{channels.context_replies_partition(0)}`; several processes may read one partition. The first "
                "reply to a request counts."
            ),
            "parameters": {"client": {"description": "Name that the asking process gave itself."}},
            "messages": _listed(["context_reply"]),
        },
        "deadLetters": {
            "address": channels.DEAD_LETTERS,
            "title": "Dead letters",
            "description": (
                f"Redis hash: id of the letter to the letter. `{channels.DEAD_LETTER_ORDER}` is a sorted set of "
                "the ids by the time of writing."
            ),
            "messages": _listed(["dead_letter"]),
        },
    }


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
    payloads = {**LIFECYCLE, **MEMORY, **EPISODES}
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
    """Return the message of a CloudEvent in structured mode; its headers are the fields beside ``data``."""
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
