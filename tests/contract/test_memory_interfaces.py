"""What can be said of memories is the same through every interface: a new field of the contract misses none of them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import pytest

from graphweft import Client, MemoryClient, MemoryScope, SyncMemoryClient
from graphweft_contracts import MemoryMessage, SearchQuery
from graphweft_contracts.memory import MemoryChanges
from graphweft_contracts.search import MemoryFilters, MemorySelection, RecordFilters
from graphweft_workers.cli import memory as commands
from graphweft_workers.cli import memory_records as record_commands
from graphweft_workers.gateway.questions import SearchQuestion
from graphweft_workers.mcp.access import McpScope
from graphweft_workers.mcp.tools import Tools

TYPESCRIPT: Final = Path(__file__).parents[2] / "clients/typescript/src"
FIELDS: Final[dict[str, set[str]]] = {
    "add": set(MemoryMessage.model_fields),
    "search": SearchQuery.model_fields.keys() - {"memory", "shown", "index_name", "fulltext_index_name"},
    "list": {*RecordFilters.model_fields, "of", "any_of", "top_k"},
    "get": {"ids"},
    "update": set(MemoryChanges.model_fields),
    "forget": set(MemorySelection.model_fields),
}
"""What the contract has of each ability, besides the scope, which is named once."""
RENAMED: Final = {
    "tag": "tags", "query": "text", "limit": "top_k", "memory_id": "ids", "memory_ids": "ids", "id": "ids",
    "texts": "text", "param": "params", "keep_stop_words": "filter_stop_words", "which": "ids",
}  # fmt: skip
CYPHER: Final = "Cypher is written in rules only"
ONE_MESSAGE: Final = "a line of --file has it"
OF_MESSAGE: Final = "it is in the messages"
ABSENT: Final[dict[tuple[str, str], dict[str, str]]] = {
    ("add", "python"): dict.fromkeys(("role", "text", "message_id", "author_name"), OF_MESSAGE),
    ("add", "python, sync"): dict.fromkeys(("role", "text", "message_id", "author_name"), OF_MESSAGE),
    ("add", "command"): dict.fromkeys(("time", "message_id", "author_name"), ONE_MESSAGE),
    ("search", "typescript"): {"retrieval_query": CYPHER, "params": CYPHER},
    ("search", "mcp"): {
        "retrieval_query": CYPHER, "params": CYPHER, "index_type": "--index-type of the operator",
        "any_of": "--any-of of the operator, or the address: a model names no scope",
        "fill": "for prompts", "without_embedder": "for prompts", "filter_stop_words": "for experts",
    },
    ("search", "command"): {
        "fill": "for prompts", "without_embedder": "for prompts", "ids": "`memory get` shows one by its id",
    },
    ("forget", "http"): dict.fromkeys(("tags", "metadata", "since", "until"), "a search by them finds the ids"),
    ("list", "mcp"): {"any_of": "as for a search"},
    ("list", "command"): {"ids": "`memory get` shows one by its id", "of": "`memory search ''` has it"},
}  # fmt: skip
"""What an interface does not have, and why. Whoever adds a field adds it everywhere, or a reason here."""


def python(client: type[MemoryClient | SyncMemoryClient]) -> Callable[[str], set[str]]:
    methods = {"add": "remember", "search": "recall"}

    def names(ability: str) -> set[str]:
        found = inspect.signature(getattr(client, methods.get(ability, ability))).parameters
        more: Iterable[str] = MemoryFilters.__annotations__ if "filters" in found or "options" in found else ()
        if ability == "forget":
            more = MemorySelection.model_fields  # others are refused
        if ability == "search":
            found = inspect.signature(MemoryClient.recall).parameters | found
        return {*found, *more}

    return names


def http(ability: str) -> set[str]:
    events = {"add": MemoryMessage, "update": MemoryChanges}  # the data of the event is the contract's own
    return {"ids"} if ability == "forget" else set(events.get(ability, SearchQuestion).model_fields)


def mcp(ability: str) -> set[str]:
    tools = Tools(Client("redis://127.0.0.1:1"), McpScope(app_id="acme", scope=MemoryScope(user_id="ada")))
    return set(tools.offered[f"memory_{ability}"].inputs["properties"])


def command(ability: str) -> set[str]:
    found: Any = getattr(commands, f"memory_{ability}", None) or getattr(record_commands, f"memory_{ability}")
    return set(inspect.signature(found).parameters)


def typescript(ability: str) -> set[str]:
    context, memory = ((TYPESCRIPT / name).read_text("utf-8") for name in ("context.ts", "memory.ts"))
    filters = _members(context, "MemoryFilters")
    match ability:
        case "add":
            return _members(memory, "RememberedMessage") | _members(context, "Message")
        case "search":
            return filters | _members(context, "SearchOptions") | {"text"}
        case "list":
            return filters | {"of", "top_k"}
        case "update":
            return _members(memory, "MemoryChanges")
        case "forget":
            [listed] = re.findall(r"const FORGETTING = new Set\(\[(.*?)\]\)", memory)
            return set(re.findall(r'"(\w+)"', listed))
        case _:
            return {"memory_id"} if "get(memoryId: string)" in memory else set()


def _members(text: str, interface: str) -> set[str]:
    [body] = re.findall(rf"export interface {interface}\b.*?{{(.*?)\n}}", text, re.DOTALL)
    names = re.findall(r"^  (\w+)\??:", body, re.MULTILINE)
    return {re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name) for name in names}


INTERFACES: Final[dict[str, Callable[[str], set[str]]]] = {
    "python": python(MemoryClient),
    "python, sync": python(SyncMemoryClient),
    "typescript": typescript,
    "http": http,
    "mcp": mcp,
    "command": command,
}


@pytest.mark.parametrize("ability", FIELDS)
@pytest.mark.parametrize("interface", INTERFACES)
def test_an_interface_takes_what_the_contract_has(interface: str, ability: str) -> None:
    offered = {RENAMED.get(name, name) for name in INTERFACES[interface](ability)}
    absent = ABSENT.get((ability, interface), {})
    assert FIELDS[ability] - offered == absent.keys()


def test_the_filters_of_callers_are_those_of_a_search() -> None:
    assert MemoryFilters.__annotations__.keys() == {*RecordFilters.model_fields, "min_score", "any_of"}


def test_typescript_sends_every_filter_that_it_declares() -> None:
    source = (TYPESCRIPT / "context.ts").read_text("utf-8")
    [body] = re.findall(r"function wireFilters\(.*?return {(.*?)\n  };", source, re.DOTALL)
    sent = set(re.findall(r"^    (\w+):", body, re.MULTILINE))
    assert sent == _members(source, "MemoryFilters") == set(MemoryFilters.__annotations__)


@pytest.mark.parametrize("ability", ["add", "update"])
def test_a_text_may_be_called_content(ability: str) -> None:
    assert "content" in typescript(ability)
