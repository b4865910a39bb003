"""The generated contract files are current, hang together, and judge events as the code does."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import ValidationError
from tools import typescript
from tools.__main__ import main, stale
from tools.schemas import schemas

from graphweft_contracts import (
    LIFECYCLE,
    MEMORY,
    Block,
    ContextReply,
    ContextRequest,
    DeadLetter,
    Event,
    InvalidEvent,
    MemoryScope,
    Missing,
    SearchQuery,
    channels,
)
from graphweft_contracts.event_rights import INTERNAL_TYPES
from graphweft_contracts.wire import CONTENT_TYPE, DATA, STRUCTURED, decode, encode

COMMITTED = Path(__file__).parents[2] / "contracts"
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)

REQUIRED: dict[str, dict[str, Any]] = {
    "agent.turn_start": {"agent_name": "Planner"},
    "agent.turn_complete": {"agent_name": "Planner"},
    "workflow.phase_complete": {"phase_name": "planning"},
    "workflow.complete": {},
    "workflow.error": {"error_type": "Timeout"},
    "tool.call_complete": {"tool_name": "search"},
    "workflow.start": {},
    "tool.call_start": {"tool_name": "search"},
    "model.call_complete": {},
    "memory.add": {"messages": [{"role": "user", "text": "I like dogs"}], "user_id": "u1"},
    "memory.embedded": {"memory_id": "m1", "model": "m", "embedding": [0.5, 0]},
    "memory.summarized": {"summary": "They talked.", "memory_ids": ["m1"], "model": "m", "user_id": "u1"},
    "memory.update": {"memory_id": "m1", "text": "I like cats"},
    "memory.forget": {"memory_ids": ["m1"]},
    "memory.erase": {"user_id": "u1"},
    "statement.judged": {
        "new": "s2",
        "old": "s1",
        "verdict": "ends",
        "at": "2026-03-05T12:00:00Z",
        "by": "m",
        "saw": {"s2": "d2", "s1": "d1"},
    },
    "statement.unjudged": {"new": "s2", "old": "s1"},
}
TYPES = (*LIFECYCLE, *MEMORY)


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads((COMMITTED / "schemas" / f"{name}.json").read_text("utf-8")))


def wire_form(type: str, data: Mapping[str, Any], /, **attributes: Any) -> dict[str, Any]:
    event = Event.create(type, app_id="shop", chat_id="c1", workflow="Sales", user_id="u1", data=data)
    return {**json.loads(encode(event)[DATA]), **attributes}


def test_the_committed_files_are_what_the_models_say() -> None:
    assert stale() == []


def test_check_names_every_stale_file_and_the_command_that_renews_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = ("--root", str(tmp_path))
    assert main(["--write", *root]) == 0
    assert main(["--check", *root]) == 0
    assert capsys.readouterr().out == ""
    (tmp_path / "contracts/asyncapi.yaml").write_text("asyncapi: 2.6.0\n")
    (tmp_path / "clients/typescript/src/contracts.ts").unlink()
    for folder in ("contracts/schemas", "rules/graphweft_rules/json_schemas"):
        (tmp_path / folder / "agent.nap.json").write_text("{}")

    assert main(["--check", *root]) == 1

    assert capsys.readouterr().out.splitlines() == [
        "contracts/asyncapi.yaml: stale",
        "clients/typescript/src/contracts.ts: missing",
        "contracts/schemas/agent.nap.json: no model has this name: delete the file",
        "rules/graphweft_rules/json_schemas/agent.nap.json: no model has this name: delete the file",
        "renew them with: make generate",
    ]


@pytest.mark.parametrize("name", sorted(schemas()))
def test_every_schema_is_lawful_and_stands_on_its_own(name: str) -> None:
    schema = validator(name).schema
    Draft202012Validator.check_schema(schema)
    for ref in references(schema):
        assert ref.startswith("#/$defs/")
        assert ref.removeprefix("#/$defs/") in schema["$defs"]


def test_every_type_with_a_payload_has_a_schema_of_its_own() -> None:
    assert set(TYPES) < set(schemas())
    assert set(REQUIRED) == set(TYPES)


@pytest.mark.parametrize("type", sorted(TYPES))
def test_a_schema_accepts_the_events_of_its_type_and_no_others(type: str) -> None:
    least = wire_form(type, REQUIRED[type])
    full = wire_form(type, {**REQUIRED[type], "own": [1, None], "context": {"user": {"id": "u1"}}}, tenant="x", n=7)
    for event in (least, full):
        assert validator(type).is_valid(event)
        assert validator("event").is_valid(event)
    other = next(name for name in sorted(TYPES) if name != type)
    assert not validator(type).is_valid({**least, "type": other})
    for field in REQUIRED[type]:
        assert not validator(type).is_valid({**least, "data": {**REQUIRED[type], field: None}})
        assert not validator(type).is_valid({**least, "data": {}})


def test_the_event_schema_accepts_types_that_a_runtime_invents() -> None:
    assert validator("event").is_valid(wire_form("order.paid", {"amount": 12.5}))
    without_time = wire_form("order.paid", {})
    del without_time["time"]
    assert validator("event").is_valid(without_time)


BREAKS: dict[str, Any] = {
    "specversion": ["0.3", None],
    "id": ["", None, 5],
    "source": [""],
    "type": ["paid", "Order.Paid", "order.", None],
    "appid": ["", "a/b", "a b", "ä", "x" * 65, None],
    "chatid": ["", None],
    "datacontenttype": ["text/plain"],
    "data": [None, [], "text", {"context": "none"}],
    "Tenant": ["x"],
    "tenant_id": ["x"],
    "a" * 21: ["x"],
    "tenant": [1.5, [1], {"a": 1}],
}


@pytest.mark.parametrize(
    ("attribute", "value"), [(attribute, value) for attribute, values in BREAKS.items() for value in values]
)
def test_schema_and_code_refuse_the_same_breaks(attribute: str, value: Any) -> None:
    broken = wire_form("order.paid", {}, **{attribute: value})
    assert not validator("event").is_valid(broken)
    with pytest.raises(InvalidEvent):
        decode({CONTENT_TYPE: STRUCTURED, DATA: json.dumps(broken).encode()})


@pytest.mark.parametrize("attribute", ["specversion", "id", "source", "type", "appid", "chatid"])
def test_the_schema_asks_for_what_a_producer_must_send(attribute: str) -> None:
    broken = wire_form("order.paid", {})
    del broken[attribute]
    assert not validator("event").is_valid(broken)


scalars = st.none() | st.booleans() | st.integers() | st.just(0.5) | st.text(max_size=5)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner))
FIELDS = [
    *("agent_name", "turn_number", "context", "duration"),
    *("messages", "user_id", "thread_id", "embedding", "memory_id", "memory_ids", "model", "facts"),
]
attributes = st.sampled_from(["id", "source", "type", "appid", "chatid", "workflow", "sequence", "data", "tenant"])


@given(
    type=st.sampled_from([*TYPES, "order.paid"]),
    changes=st.dictionaries(attributes | st.text("ab_A1", max_size=3), values, max_size=2),
    data=st.dictionaries(st.sampled_from(FIELDS), values, max_size=2),
)
def test_what_a_schema_accepts_the_code_reads(type: str, changes: dict[str, Any], data: dict[str, Any]) -> None:
    raw = {**wire_form(type, REQUIRED.get(type, {})), **changes}
    if isinstance(raw["data"], dict):
        raw["data"] = {**raw["data"], **data}
    name = raw["type"] if raw["type"] in [*TYPES] else "event"
    if CACHED[name].is_valid(raw):
        event = decode({CONTENT_TYPE: STRUCTURED, DATA: json.dumps(raw).encode()}, received=NOW)
        assert event.data == raw["data"]


CACHED = {name: validator(name) for name in (*TYPES, "event")}


def test_requests_replies_and_letters_fit_their_schemas() -> None:
    request = ContextRequest(
        id="r1", app_id="shop", workflow="Sales", agent="Planner", chat_id="c1", context={"a": [1]}, deadline_ms=1
    )
    reply = ContextReply(
        id="r1",
        blocks=(Block(name="facts", format="list", value=[{"a": 1}], rows=1, rule="r", query="q"),),
        missing=(Missing(name="m", rule="r", query="q", reason="timeout"),),
        partial=True,
        elapsed_ms=1.5,
    )
    letter = DeadLetter(
        id="d1", reason="invalid_event", message="no data", position="0:1-0", time=NOW, fields={"data": "e30="}
    )
    for name, model in (("context_request", request), ("context_reply", reply), ("dead_letter", letter)):
        written = json.loads(model.model_dump_json())
        validator(name).validate(written)
        assert not validator(name).is_valid({**written, "surplus": 1})
        assert not validator(name).is_valid({**written, "id": None})
    assert not validator("context_reply").is_valid({"id": "r1", "reason": "weather"})
    assert not validator("context_request").is_valid({**json.loads(request.model_dump_json()), "app_id": "a/b"})
    for search in (
        SearchQuery(text="dogs", memory=MemoryScope(user_id="u1"), index_type="hybrid"),
        SearchQuery(
            text="dogs", index_name="chunks", retrieval_query="RETURN node.text AS text, score", params={"a": 1}
        ),
    ):
        validator("context_request").validate(
            json.loads(request.model_copy(update={"search": search}).model_dump_json())
        )


# Schema and code agree on memories: what one refuses, the other does.

USER = {"user_id": "u1"}
SAID = {"role": "user", "text": "I like dogs"}
FACT = {"subject": "Ann", "predicate": "lives in", "object": "Oslo"}
SCOPES = ("application_id", "agent_id", "user_id", "thread_id")
GOOD_MEMORIES: list[tuple[str, dict[str, Any]]] = [
    *(("memory.add", {"messages": [SAID], scope: "x"}) for scope in SCOPES),
    ("memory.add", {"messages": [SAID], **dict.fromkeys(SCOPES, "x"), "own": [1]}),
    ("memory.add", {"messages": [SAID | {"role": role} for role in ("user", "assistant", "system")], **USER}),
    ("memory.add", {"messages": [SAID] * 1_000, **USER}),
    (
        "memory.add",
        {"messages": [SAID | {"time": "2026-01-01T00:00:00Z", "message_id": "1", "author_name": "Ann"}], **USER},
    ),
    ("memory.add", {"messages": [SAID], "user_id": None, "thread_id": "t"}),
    ("memory.embedded", {"memory_id": "m", "model": "m", "embedding": [1e-40]}),
    ("memory.embedded", {"memory_id": "m", "model": "m", "embedding": [3.4e38, -3.4e38, 0]}),
    ("memory.embedded", {"memory_id": "m", "model": "m", "embedding": [1] * 8_192}),
    (
        "memory.summarized",
        {
            "summary": "s",
            "memory_ids": ["a", "b"],
            "model": "m",
            "facts": [FACT, FACT | {"text": "Ann lives in Oslo.", "valid_from": "2026-01-01T00:00:00Z"}],
            "preferences": [{"text": "tea", "memory_ids": ["a"]}],
            **USER,
        },
    ),
    ("memory.add", {"messages": [SAID | {"tags": ["a b", "ä"], "metadata": {"n": 1, "x": "y", "b": True}}], **USER}),
    ("memory.update", {"memory_id": "m", "tags": []}),
    ("memory.update", {"memory_id": "m", "metadata": {}, "text": None}),
    ("memory.update", {"memory_id": "m", "pinned": False, "time": "2026-01-01T00:00:00Z"}),
    ("memory.add", {"messages": [SAID | {"expires_at": "2999-01-01T00:00:00Z"}], **USER}),
    ("memory.update", {"memory_id": "m", "expires_at": "never"}),
    ("memory.update", {"memory_id": "m", "expires_at": "2999-01-01T00:00:00Z"}),
    ("memory.forget", {"memory_ids": ["a"] * 1_000}),
    ("memory.erase", {"user_id": "u1", "before": "2026-01-01T00:00:00Z"}),
]
BAD_MEMORIES: list[tuple[str, dict[str, Any]]] = [
    ("memory.add", {"messages": [SAID]}),
    ("memory.add", {"messages": [SAID], **dict.fromkeys(SCOPES)}),
    ("memory.add", {"messages": [SAID], "user_id": ""}),
    ("memory.add", {"messages": [SAID], "user_id": "x" * 257}),
    ("memory.add", {"messages": [SAID], "user_id": 5}),
    ("memory.add", {"messages": [], **USER}),
    ("memory.add", {"messages": [SAID] * 1_001, **USER}),
    ("memory.add", {"messages": "I like dogs", **USER}),
    ("memory.add", {"messages": [SAID | {"role": "tool"}], **USER}),
    ("memory.add", {"messages": [SAID | {"role": "User"}], **USER}),
    ("memory.add", {"messages": [SAID | {"text": ""}], **USER}),
    ("memory.add", {"messages": [SAID | {"text": None}], **USER}),
    ("memory.add", {"messages": [SAID | {"message_id": ""}], **USER}),
    ("memory.add", {"messages": [SAID | {"mood": "good"}], **USER}),
    ("memory.add", {"messages": [SAID | {"tags": "a"}], **USER}),
    ("memory.add", {"messages": [SAID | {"tags": ["a\nb"]}], **USER}),
    ("memory.add", {"messages": [SAID | {"tags": ["a"] * 33}], **USER}),
    ("memory.add", {"messages": [SAID | {"metadata": {"a": [1]}}], **USER}),
    ("memory.add", {"messages": [SAID | {"metadata": {"a": None}}], **USER}),
    ("memory.update", {"memory_id": "m"}),
    ("memory.update", {"memory_id": "m", "text": ""}),
    ("memory.update", {"memory_id": "m", "text": None, "pinned": None}),
    ("memory.update", {"text": "x"}),
    ("memory.add", {"messages": [SAID | {"expires_at": ["2999-01-01"]}], **USER}),
    ("memory.update", {"memory_id": "m", "expires_at": False}),
    ("memory.embedded", {"memory_id": "m", "model": "m", "embedding": []}),
    ("memory.embedded", {"memory_id": "m", "model": "m", "embedding": [0, 0.0, -0.0]}),
    ("memory.embedded", {"memory_id": "m", "model": "m", "embedding": [1e-46]}),
    ("memory.embedded", {"memory_id": "m", "model": "m", "embedding": [1, None]}),
    ("memory.embedded", {"memory_id": "m", "model": "m", "embedding": [1, float("nan")]}),
    ("memory.embedded", {"memory_id": "m", "model": "m", "embedding": [float("inf")]}),
    ("memory.embedded", {"memory_id": "m", "model": "m", "embedding": [1, 3.5e38]}),
    ("memory.embedded", {"memory_id": "m", "model": "m", "embedding": [1, 1e300]}),
    ("memory.embedded", {"memory_id": "m", "model": "m", "embedding": [1] * 8_193}),
    ("memory.embedded", {"memory_id": "", "model": "m", "embedding": [1]}),
    ("memory.summarized", {"summary": "s", "memory_ids": ["a"], "model": "m"}),
    ("memory.summarized", {"summary": "", "memory_ids": ["a"], "model": "m", **USER}),
    ("memory.summarized", {"summary": "s", "memory_ids": [], "model": "m", **USER}),
    ("memory.summarized", {"summary": "s", "memory_ids": ["a"], "model": "m", "facts": [FACT] * 1_001, **USER}),
    (
        "memory.summarized",
        {"summary": "s", "memory_ids": ["a"], "model": "m", "facts": [FACT | {"subject": ""}], **USER},
    ),
    ("memory.summarized", {"summary": "s", "memory_ids": ["a"], "model": "m", "preferences": [{}], **USER}),
    ("memory.forget", {"memory_ids": []}),
    ("memory.forget", {"memory_ids": ["a"] * 1_001}),
    ("memory.forget", {"memory_ids": [""]}),
    ("memory.erase", {}),
    ("memory.erase", {"user_id": None}),
]


def decoded(type: str, data: Mapping[str, Any]) -> Event:
    raw = wire_form(type, REQUIRED[type]) | {"data": data}
    return decode({CONTENT_TYPE: STRUCTURED, DATA: json.dumps(raw).encode()})


@pytest.mark.parametrize(("type", "data"), GOOD_MEMORIES)
def test_schema_and_code_take_the_same_memories(type: str, data: dict[str, Any]) -> None:
    assert CACHED[type].is_valid(wire_form(type, REQUIRED[type]) | {"data": data})
    assert decoded(type, data).data == data


@pytest.mark.parametrize(("type", "data"), BAD_MEMORIES)
def test_schema_and_code_refuse_the_same_memories(type: str, data: dict[str, Any]) -> None:
    with pytest.raises(InvalidEvent):
        decoded(type, data)
    if "nan" not in repr(data):  # JSON has none, and jsonschema compares it with nothing
        assert not CACHED[type].is_valid(wire_form(type, REQUIRED[type]) | {"data": data})


def test_what_is_wrong_with_a_memory_is_said_without_its_text() -> None:
    for data, said in (
        ({"messages": [SAID]}, "event: Value error, a memory needs a scope: give at least one of application_id, "),
        ({"messages": [SAID, SAID | {"role": "tool", "text": "secret"}], **USER}, "messages.1.role: Input should be "),
        (
            {"messages": [SAID | {"time": "2026-01-01T00:00:00"}], **USER},
            "messages.0.time: Value error, Input should ",
        ),
    ):
        with pytest.raises(InvalidEvent) as refused:
            decoded("memory.add", data)
        assert said in str(refused.value)
        assert "secret" not in str(refused.value)
        assert "dogs" not in str(refused.value)


SEARCHES: list[tuple[dict[str, Any], str | None]] = [
    ({"memory": USER}, None),
    ({"memory": USER, "index_type": "hybrid", "top_k": 1_000}, None),
    ({"index_name": "chunks"}, None),
    ({"index_name": "chunks", "index_type": "fulltext"}, None),
    ({"index_name": "chunks", "index_type": "hybrid", "fulltext_index_name": "words"}, None),
    ({"index_name": "chunks", "fulltext_index_name": None, "memory": None, "index_type": None}, None),
    ({}, None),
    ({"index_type": "hybrid"}, "fulltext_index_name is required when index_type='hybrid'"),
    ({"memory": {}}, "a memory needs a scope: give at least one of application_id, agent_id, user_id, thread_id"),
    ({"memory": {"user_id": None}}, "a memory needs a scope"),
    ({"memory": USER, "index_name": "chunks"}, "memories have indexes of their own"),
    ({"memory": USER, "fulltext_index_name": "chunks"}, "memories have indexes of their own"),
    (
        {"index_name": "chunks", "index_type": "hybrid"},
        "fulltext_index_name is required when index_type='hybrid'",
    ),
    ({"index_name": "chunks", "index_type": "graph"}, "Input should be 'vector', 'fulltext' or 'hybrid'"),
    ({"memory": USER, "top_k": 0}, "top_k must be at least 1"),
    ({"memory": USER, "top_k": 1_001}, "top_k must be at least 1, and at most 1000"),
    ({"memory": USER, "k": 1}, "Extra inputs are not permitted"),
]


@pytest.mark.parametrize(("search", "said"), SEARCHES)
def test_schema_and_code_agree_on_searches(search: dict[str, Any], said: str | None) -> None:
    request = {"id": "r", "app_id": "shop", "workflow": "W", "agent": "A", "chat_id": "c", "deadline_ms": 1}
    raw = {**request, "search": search}
    assert validator("context_request").is_valid(raw) == (said is None)
    if said is None:
        assert ContextRequest.model_validate(raw).search == SearchQuery.model_validate(search)
    else:
        with pytest.raises(ValidationError, match=re.escape(said)):
            ContextRequest.model_validate(raw)


def test_the_rows_of_a_search_are_at_hand() -> None:
    rows = [{"text": "I like dogs", "score": 0.9}]
    block = Block(name="search", format="list", value=rows, rows=1, rule="search", query="search")
    assert ContextReply(id="r", blocks=(block,)).results == rows
    assert ContextReply(id="r").results == []
    assert ContextReply(id="r", blocks=(block.model_copy(update={"format": "json", "value": "[]"}),)).results == []


# The document, by the structure that https://www.asyncapi.com/docs/reference/specification/v3.0.0 asks for.


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    text = (COMMITTED / "asyncapi.yaml").read_text("utf-8")
    assert not any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)), "aliases confuse readers"
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        node = list(node.values())
    if isinstance(node, list):
        for item in node:
            yield from references(item)


def resolve(document: dict[str, Any], ref: str) -> Any:
    node: Any = document
    for step in ref.removeprefix("#/").split("/"):
        node = node[step]
    return resolve(document, node["$ref"]) if set(node) == {"$ref"} else node


def test_the_document_has_the_required_parts(document: dict[str, Any]) -> None:
    assert document["asyncapi"] == "3.0.0"
    assert document["info"]["title"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", document["info"]["version"])
    assert set(document) <= {"asyncapi", "info", "defaultContentType", "channels", "operations", "components"}
    for operation in document["operations"].values():
        assert operation["action"] in {"send", "receive"}
    for key in (*document["channels"], *document["operations"], *document["components"]["messages"]):
        assert re.fullmatch(r"[a-zA-Z0-9.\-_]+", key)


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    for ref in references(document):
        if ref.startswith("#/"):
            assert resolve(document, ref)
        else:
            assert (COMMITTED / ref).is_file(), ref


def test_operations_use_the_messages_of_their_channel(document: dict[str, Any]) -> None:
    for operation in document["operations"].values():
        for part in (operation, operation.get("reply")):
            if part is not None:
                channel = part["channel"]["$ref"]
                assert resolve(document, channel)
                assert all(message["$ref"].startswith(f"{channel}/messages/") for message in part["messages"])


def test_parameters_are_those_of_the_address(document: dict[str, Any]) -> None:
    for channel in document["channels"].values():
        assert set(re.findall(r"\{(\w+)\}", channel["address"])) == set(channel.get("parameters", {}))


def test_addresses_are_the_names_on_the_bus(document: dict[str, Any]) -> None:
    address = {name: channel["address"] for name, channel in document["channels"].items()}
    assert address["events"].format(partition=3) == channels.events_stream(3)
    assert address["contextReplies"].format(app="acme", client="me") == channels.context_replies("me", "acme")
    assert address["contextRequests"] == channels.CONTEXT_REQUESTS
    assert address["deadLetters"] == channels.DEAD_LETTERS


def test_every_schema_is_the_payload_of_one_message(document: dict[str, Any]) -> None:
    payloads = {
        name: message["payload"]["schema"]["$ref"] for name, message in document["components"]["messages"].items()
    }
    assert payloads == {name: f"./schemas/{name}.json" for name in schemas()}
    listed = {ref.rpartition("/")[2] for ref in references(document["channels"])}
    assert listed == set(payloads)


def test_events_travel_as_structured_cloudevents(document: dict[str, Any]) -> None:
    for name in document["channels"]["events"]["messages"]:
        message = document["components"]["messages"][name]
        assert message["contentType"] == STRUCTURED.decode()
        Draft202012Validator(message["headers"]).validate({CONTENT_TYPE.decode(): STRUCTURED.decode()})


def test_the_typescript_client_knows_no_events_that_workers_alone_emit() -> None:
    for name in INTERNAL_TYPES:
        assert name not in typescript.render()


def test_the_pins_of_the_typescript_client_name_no_registry_and_its_version_is_ours() -> None:
    client = COMMITTED.parent / "clients/typescript"
    pins: dict[str, Any] = json.loads((client / "package-lock.json").read_text())["packages"]
    assert [name for name, each in pins.items() if "resolved" in each] == []
    assert [name for name, each in pins.items() if name and "integrity" not in each] == []
    package = json.loads((client / "package.json").read_text())
    version = tomllib.loads((COMMITTED.parent / "pyproject.toml").read_text())["tool"]["hatch"]["version"]
    assert (package["version"], package["license"]) == (version["fallback-version"].partition(".dev")[0], "Apache-2.0")
    assert "dependencies" not in package
