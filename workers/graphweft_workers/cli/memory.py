"""``graphweft memory``: what agents remember, put there, found, listed, forgotten and erased by hand."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from itertools import batched
from pathlib import Path
from typing import Annotated, Final

import typer
from pydantic import ValidationError
from pydantic_core import to_json

from graphweft import Client
from graphweft.memory import SOURCE, add_event, erase_event
from graphweft_contracts import Event, InvalidEvent, InvalidSettings, MemoryMessage, MemoryScope
from graphweft_contracts.memory import SCOPES
from graphweft_contracts.search import MOST_RESULTS
from graphweft_workers.cli.options import App, Data, Json, check_app, command
from graphweft_workers.cli.output import print_error, print_json, print_table, say, stderr
from graphweft_workers.cli.publish import GiveUp, Wait, interruptible, publish
from graphweft_workers.cli.reading import MOST_MS, assignments, finish
from graphweft_workers.cli.running import running_bus, running_graph
from graphweft_workers.imports.files import STANDARD_INPUT
from graphweft_workers.settings import Settings

_MOST_MESSAGES: Final = 1_000
_MOST_BYTES: Final = 500_000
"""Texts of one event, as JSON; the bus takes about twice that, and each message has other fields too."""
_LARGEST: Final = 900_000
_READ_S: Final = 60.0
_STAYS: Final = (
    "The texts still stand in the log of events until it is trimmed, and perhaps in dead letters (`graphweft dlq list`)"
)

_User = Annotated[str | None, typer.Option("--user", help="Memories of this user.")]
_Thread = Annotated[str | None, typer.Option("--thread", help="Memories of this conversation thread.")]
_Agent = Annotated[str | None, typer.Option("--agent-id", help="Memories of this agent.")]
_Application = Annotated[
    str | None, typer.Option("--application", help="Memories of this application, which is a scope within the app.")
]


class Role(StrEnum):
    """Who said something."""

    USER = "user"
    ASSISTANT = "assistant"
    SYSTEM = "system"


class Kind(StrEnum):
    """What is searched."""

    ALL = "all"
    MEMORIES = "memories"
    FACTS = "facts"
    PREFERENCES = "preferences"
    SUMMARIES = "summaries"
    ENTITIES = "entities"
    EPISODES = "episodes"


class IndexKind(StrEnum):
    """How memories are searched."""

    VECTOR = "vector"
    FULLTEXT = "fulltext"
    HYBRID = "hybrid"


@command
async def memory_add(
    app: App,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT...", help="What was said.")] = None,
    file: Annotated[
        str | None,
        typer.Option("--file", help="One JSON object a line: role, text, perhaps time, message_id; - reads stdin."),
    ] = None,
    role: Annotated[Role, typer.Option("--role", help="Who said the TEXTs.")] = Role.USER,
    user: _User = None,
    thread: _Thread = None,
    agent_id: _Agent = None,
    application: _Application = None,
    data: Data = None,
    wait: Wait = False,
    give_up_after: GiveUp = None,
    json: Json = False,
) -> None:
    """Remember texts, or the messages of a file, within a scope. A file is checked as a whole first."""
    settings = Settings.load(data=data)
    check_app(app)
    scope = _scope(user, thread, agent_id, application)
    if bool(texts) == (file is not None):
        raise InvalidSettings("give TEXTs, or --file, and not both")
    if file is not None:
        messages = _messages_of(file)
    else:
        messages = [_message(f"TEXT {n}", {"role": role, "text": text}) for n, text in enumerate(texts or [], 1)]
    events = [event for part in _parts(messages) if (event := add_event(app, scope, part)) is not None]
    position = await _publish(settings, events, wait=wait, give_up_s=give_up_after)
    if json:
        print_json({"remembered": len(messages), "events": len(events), "position": position})
    else:
        say(f"{len(messages)} messages sent" + (f"; the last event is at {position}" if position else ""))


@command
async def memory_search(
    text: Annotated[str, typer.Argument(help="What to search for.")],
    app: App,
    user: _User = None,
    thread: _Thread = None,
    agent_id: _Agent = None,
    application: _Application = None,
    of: Annotated[
        Kind, typer.Option("--of", help="What of the scope; all: memories, facts, preferences and summaries.")
    ] = Kind.ALL,
    top_k: Annotated[int, typer.Option("--top-k", min=1, max=MOST_RESULTS, help="Most results.")] = 5,
    index_type: Annotated[
        IndexKind | None,
        typer.Option(
            "--index-type",
            help="How.",
            show_default="by words, and by vector too where there is an embedder",
        ),
    ] = None,
    retrieval_query: Annotated[
        str | None, typer.Option("--retrieval-query", help="Cypher that goes on from node and score.")
    ] = None,
    param: Annotated[
        list[str] | None, typer.Option("--param", help="Its parameter: k=text, or k:=JSON; repeatable.")
    ] = None,
    keep_stop_words: Annotated[
        bool, typer.Option("--keep-stop-words", help="Search for words like `the` too.")
    ] = False,
    budget_ms: Annotated[int, typer.Option("--budget-ms", min=1, max=MOST_MS, help="Time for the answer.")] = 2000,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=1, help="Most tokens of the text.", show_default="no limit")
    ] = None,
    after: Annotated[
        str | None,
        typer.Option("--after", metavar="POSITION", help="Wait within the budget for the effect of this event."),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say how the answer came about.")] = False,
    data: Data = None,
    json: Json = False,
) -> int | None:
    """Search what is remembered within a scope, as a runtime would, and print them as an agent would read them."""
    settings = Settings.load(data=data)
    check_app(app)
    scope = _scope(user, thread, agent_id, application)
    params = assignments(param or [], "--param")
    async with running_bus(settings):
        pass
    async with Client(settings.bus, app_id=app) as client:
        try:
            reply = await client.search(
                text,
                memory=scope,
                of=of.value,
                index_type=None if index_type is None else index_type.value,
                top_k=top_k,
                retrieval_query=retrieval_query,
                params=params,
                filter_stop_words=not keep_stop_words,
                budget_ms=budget_ms,
                max_tokens=max_tokens,
                after=after,
                explain=explain,
            )
        except ValueError as error:
            raise InvalidSettings(str(error)) from None
    code = finish(reply, json)
    if reply.reason == "invalid_request" and "embedder is required" in reply.detail:
        hint = "set GRAPHWEFT_EMBEDDER where responder and memory worker run, or search with --index-type fulltext"
        stderr.print(hint, style="yellow", soft_wrap=True)
    return code


@command
async def memory_list(
    app: App,
    user: _User = None,
    thread: _Thread = None,
    agent_id: _Agent = None,
    application: _Application = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=MOST_RESULTS, help="Most memories to list.")] = 20,
    data: Data = None,
    json: Json = False,
) -> None:
    """List the memories of a scope, the latest first. It needs the graph only."""
    from graphweft_rules.packs.memory import MEMORY_LABEL

    settings = Settings.load(data=data)
    check_app(app)
    scope = _scope(user, thread, agent_id, application)
    within = " AND ".join(f"m.{name} = ${name}" for name in scope.given)
    statement = (
        f"MATCH (m:{MEMORY_LABEL}) WHERE {within} "
        "RETURN m.timestamp AS time, m.role AS role, m.text AS text, m.author_name AS author_name, m.id AS id "
        f"ORDER BY m.timestamp DESC, m.id LIMIT {limit}"
    )
    async with running_graph(settings) as graph:
        table = await graph.read(app, statement, scope.given, timeout_s=_READ_S)
    if json:
        print_json([dict(zip(table.columns, row, strict=True)) for row in table.rows])
    elif table.rows:
        print_table(("time", "role", "text", "author", "id"), table.rows)
    else:
        stderr.print("nothing is remembered within this scope", style="yellow")


@command
async def memory_forget(
    app: App,
    memory_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of memories, from `memory list`.")],
    data: Data = None,
    wait: Wait = False,
    give_up_after: GiveUp = None,
    json: Json = False,
) -> int | None:
    """Forget single memories. Facts, preferences and summaries that were taken from them stay, and are found."""
    from graphweft_rules.packs.memory import MEMORY_LABEL

    settings = Settings.load(data=data)
    check_app(app)
    statement = f"UNWIND $ids AS id MATCH (m:{MEMORY_LABEL} {{id: id}}) RETURN m.id AS id, m.chat_id AS chat_id"
    asked = list(dict.fromkeys(memory_ids))
    chats: dict[str, list[str]] = {}
    async with running_graph(settings) as graph:
        for part in batched(asked, _MOST_MESSAGES):
            for memory_id, chat_id in (await graph.read(app, statement, {"ids": list(part)}, timeout_s=_READ_S)).rows:
                chats.setdefault(str(chat_id), []).append(str(memory_id))
    events = [
        # In the chat in which they were added: only there the two are in order.
        Event.create("memory.forget", app_id=app, chat_id=chat_id, data={"memory_ids": list(part)}, source=SOURCE)
        for chat_id, found in chats.items()
        for part in batched(found, _MOST_MESSAGES)
    ]
    await _publish(settings, events, wait=wait, give_up_s=give_up_after)
    known = {memory_id for found in chats.values() for memory_id in found}
    unknown = [memory_id for memory_id in asked if memory_id not in known]
    if json:
        print_json({"forgotten": len(known), "unknown": unknown})
    else:
        say(f"{len(known)} memories are forgotten. {_STAYS}" if known else "nothing is forgotten")
        if unknown:
            say(f"unknown: {', '.join(unknown)}")
    return 2 if unknown else None


@command
async def memory_erase(
    app: App,
    user: Annotated[str, typer.Option("--user", help="The user; all scopes and threads of theirs.")],
    before: Annotated[
        str | None,
        typer.Option("--before", metavar="TIME", help="Only what was recorded up to then.", show_default="now"),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    data: Data = None,
    wait: Wait = False,
    give_up_after: GiveUp = None,
    json: Json = False,
) -> int | None:
    """Erase all that is remembered of a user, in every scope, for ever: a replay respects it."""
    settings = Settings.load(data=data)
    check_app(app)
    try:
        event = erase_event(app, user, before=_time(before), source=SOURCE)
    except ValueError as error:
        raise InvalidSettings(str(error)) from None
    if not yes:
        if not sys.stdin.isatty():
            raise InvalidSettings("this cannot be undone: give --yes, for nobody is here to ask")
        stderr.print(f"All memories of the user {user!r} in the app {app!r} will be gone.", markup=False)
        stderr.print("Erase them? [y/N] ", end="", markup=False)
        if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
            stderr.print("nothing was erased")
            return 2
    position = await _publish(settings, [event], wait=wait, give_up_s=give_up_after)
    if json:
        print_json({"erased": wait, "position": position})
    else:
        say(f"{'The memories are erased' if wait else 'The workers will erase the memories'}. {_STAYS}")
    return None


async def _publish(settings: Settings, events: Sequence[Event], *, wait: bool, give_up_s: float | None) -> str | None:
    """Publish events of one chat or more; return the position of the last one where all are in one partition."""
    async with running_bus(settings):
        pass
    if not events:
        return None
    sent, outcome = await publish(settings, events, len(events), wait=wait, give_up_s=give_up_s)
    if outcome is not None and not outcome.complete:
        why = "; ".join(f"{cause.reason}: {cause.message}" for cause in outcome.causes)
        raise InvalidEvent(f"the event is on the bus and was not applied ({why}); `graphweft dlq list` shows it")
    [*others, (partition, offset)] = sent.last.items()
    return None if others else f"{partition}:{offset}"


def _scope(user: str | None, thread: str | None, agent_id: str | None, application: str | None) -> MemoryScope:
    given = dict(zip(SCOPES, (application, agent_id, user, thread), strict=True))
    if not any(given.values()):
        raise InvalidSettings(
            "a memory needs a scope: give at least one of --user, --thread, --agent-id, --application"
        )
    try:
        return MemoryScope(**given)
    except ValidationError:
        raise InvalidSettings(
            "--user, --thread, --agent-id and --application have 1 to 256 characters, no control characters, and no "
            "blank at either end"
        ) from None


def _messages_of(file: str) -> list[MemoryMessage]:
    """Return the messages of a file. Raises ``InvalidEvent`` when a line is none, after naming each of those."""
    try:
        with interruptible():
            content = sys.stdin.buffer.read() if file == STANDARD_INPUT else Path(file).read_bytes()
    except OSError as error:
        raise InvalidEvent(f"{file}: {error.strerror}") from error
    name = "standard input" if file == STANDARD_INPUT else file
    messages: list[MemoryMessage] = []
    faults = 0
    for number, line in enumerate(content.removeprefix(codecs.BOM_UTF8).split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            messages.append(_message(f"{name}:{number}", line))
        except InvalidEvent as error:
            print_error(error)
            faults += 1
    if faults:
        raise InvalidEvent(f"{name}: {faults} lines are no messages; correct them, nothing was sent")
    if not messages:
        raise InvalidEvent(f"{name}: there is no message in it")
    return messages


def _message(place: str, said: bytes | dict[str, str]) -> MemoryMessage:
    try:
        if isinstance(said, bytes):
            message = MemoryMessage.model_validate_json(said)
        else:
            message = MemoryMessage.model_validate(said)
    except ValidationError as error:
        what = "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or 'message'}: {fault['msg']}"
            for fault in error.errors(include_input=False, include_url=False, include_context=False)
        )
        raise InvalidEvent(f"{place}: {what}") from None
    if not message.text.strip():
        raise InvalidEvent(f"{place}: text: there is nothing to remember")
    if (size := len(to_json(message.text))) > _LARGEST:
        raise InvalidEvent(f"{place}: text: it has {size:,} bytes, and one message at most {_LARGEST:,}: split it")
    return message


def _parts(messages: Iterable[MemoryMessage]) -> Iterator[list[MemoryMessage]]:
    """Yield as many messages together as fit into one event."""
    part: list[MemoryMessage] = []
    size = 0
    for message in messages:
        own = len(message.model_dump_json())
        if part and (len(part) == _MOST_MESSAGES or size + own > _MOST_BYTES):
            yield part
            part, size = [], 0
        part.append(message)
        size += own
    if part:
        yield part


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise InvalidSettings(f"--before {text!r}: write a time with its zone, as 2026-02-01T10:00:00Z")
    return time
