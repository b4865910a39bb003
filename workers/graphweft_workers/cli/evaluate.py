"""``graphweft eval``: questions whose answers are known, and what the memory finds and shows."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from graphweft import Client
from graphweft_contracts import Event, InvalidSettings
from graphweft_contracts.events import DEFAULT_WORKFLOW
from graphweft_contracts.search import INDEX_TYPES
from graphweft_contracts.wire import did_you_mean
from graphweft_workers.cli.command_logs import set_up_command_logs
from graphweft_workers.cli.current_graph import current_graph
from graphweft_workers.cli.memory import ScopeOptions
from graphweft_workers.cli.options import App, BudgetMs, Data, Json, command
from graphweft_workers.cli.output import show, warn
from graphweft_workers.cli.publishing import PublishOptions, bar, publish, read_between
from graphweft_workers.cli.replay_progress import replay_progress
from graphweft_workers.evaluation.asking import QuestionScores, QuestionSettings, ask, evidence_of
from graphweft_workers.evaluation.baseline import Baseline, compare_with, load_baseline
from graphweft_workers.evaluation.collecting import MOST_SCANNED, collect, file_of
from graphweft_workers.evaluation.locomo import Conversation, memories_of, questions_of, read
from graphweft_workers.evaluation.measures import METRICS, SHARES
from graphweft_workers.evaluation.question_file import load_questions
from graphweft_workers.evaluation.questions import Evidence, MemoryQuestion
from graphweft_workers.reports.evaluation import EvaluationReport
from graphweft_workers.reports.report import Notice, Part, PlainReport
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.connections import make_transport
from graphweft_workers.wiring.running import check_bus, running_app_log, running_graph

_MOST_NAMED: Final = 10
_COMPARABLE: Final = ("index_type", "max_tokens", "workflow", "agent", "rules")
"""What ``--compare`` changes: settings of a question, and the rules that make the graph and the blocks."""
BELOW_LIMIT: Final = 3
"""The exit code if a bound of ``--fail-under`` is not kept."""


@command
async def eval_run(
    app: App,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A file of questions (YAML).", show_default=False)
    ] = None,
    locomo: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="Conversations with questions, in the format of locomo10.json."),
    ] = None,
    send: Annotated[
        bool, typer.Option("--publish", help="First publish the conversations of --from to the app, and wait.")
    ] = False,
    workflow: Annotated[
        str, typer.Option("--workflow", help="Workflow whose injection rules are asked.")
    ] = DEFAULT_WORKFLOW,
    agent: Annotated[str, typer.Option("--agent", help="The agent that asks the rules.")] = "assistant",
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=1, help="Limit of the text of a search; rules have limits of their own.")
    ] = 600,
    budget_ms: BudgetMs = 2000,
    against: Annotated[
        Path | None, typer.Option("--against", metavar="FILE", help="What an earlier run wrote with --json.")
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            "--compare",
            metavar="NAME=VALUE,…",
            help="Ask again with other settings, and compare: index_type=fulltext, max_tokens=300, workflow, agent; "
            "rules=FOLDER replays the log by these rules first.",
        ),
    ] = None,
    fail_under: Annotated[
        str | None,
        typer.Option(
            "--fail-under", metavar="NAME=NUMBER,…", help="Exit with 3 if a metric is worse: recall@10=0.6,empty=0.02."
        ),
    ] = None,
    data: Data = None,
    json: Json = False,
) -> int | None:
    """Ask questions whose answers are known, through the rules and by a search, and measure what comes.

    It asks a responder, as a runtime would, and changes nothing. No model judges the answers.
    With --compare rules=FOLDER this process answers, from the live graph and from one that is deleted at the end.
    """
    settings = Settings.load(data=data)
    limits = limits_of(fail_under)
    if against is not None and compare is not None:
        raise InvalidSettings("--against and --compare both say with what to compare: give one of them")
    baseline = None if against is None else load_baseline(against)
    how = QuestionSettings(app=app, workflow=workflow, agent=agent, budget_ms=budget_ms, max_tokens=max_tokens)
    other, folder = (how, None) if compare is None else varied(how, compare)
    ways = [how] if compare is None else [how, other]
    questions, conversations = _questions(file, locomo)
    if send and not conversations:
        raise InvalidSettings("--publish sends the conversations of --from: give --from too")
    await check_bus(settings)
    if send:
        await _publish(settings, conversations, app, PublishOptions(data=data, wait=True))
    await _check_app(settings, app)
    evidence = await _evidence(settings, questions, app)
    runs: list[list[QuestionScores]] = [[] for _ in ways]
    async with _clients(settings, app, folder) as clients:
        with bar("asking", len(questions) * len(ways), "questions") as advance:
            for client, each_way, run in zip(clients, ways, runs, strict=False):
                async for each in ask(client, questions, evidence, each_way):
                    run.append(each)
                    advance(1)
    answered = runs[0]
    if compare is not None:
        baseline = Baseline.of(answered)
    compared = None if baseline is None else compare_with(baseline, runs[-1])
    report = EvaluationReport(
        app=app, answered=answered, compared=compared, limits=limits, variant=compare,
        varied=() if compare is None else runs[-1],
    )  # fmt: skip
    show(report, json=json)
    return BELOW_LIMIT if report.failures else None


@command
async def eval_collect(
    app: App,
    scope: ScopeOptions,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum number of questions.")] = 20,
    budget_ms: BudgetMs = 2000,
    data: Data = None,
    json: Json = False,
) -> None:
    """Propose a file of questions: those that users asked, each with rows that may answer it.

    It reads the latest memories of users in the graph, and asks a responder. Somebody has to say what answers each.
    """
    settings = Settings.load(data=data)
    given = scope.scope().given if scope.is_given else {}
    await check_bus(settings)
    await _check_app(settings, app)
    async with running_graph(settings) as graph, Client(transport=make_transport(settings), app_id=app) as client:
        proposals = await collect(client, graph, app, given, limit=limit, budget_ms=budget_ms)
    said: Part = file_of(proposals, app)
    if not proposals:
        said = Notice(
            f"no question is among the latest {MOST_SCANNED:,} memories of users in the app {app!r}: check --app, or "
            "write the file by hand"
        )
    show(PlainReport([each.to_dict() for each in proposals], [said]), json=json)


def _questions(file: Path | None, locomo: Path | None) -> tuple[Sequence[MemoryQuestion], Sequence[Conversation]]:
    if (file is None) == (locomo is None):
        raise InvalidSettings("give either a file of questions, or --from with conversations in LoCoMo's format")
    if file is not None:
        return load_questions(file), ()
    assert locomo is not None
    try:
        conversations = read(locomo)
    except OSError as error:
        raise InvalidSettings(f"--from: {locomo} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InvalidSettings(f"--from: {error}") from error
    questions = [question for each in conversations for question in questions_of(each, str(locomo))]
    if not questions:
        raise InvalidSettings(f"--from: {locomo} has no question with evidence")
    left_out = sum(each.asked for each in conversations) - len(questions)
    if left_out:
        warn(f"{left_out:,} questions of {locomo} are left out: no turn of their conversation is their evidence")
    return questions, conversations


async def _check_app(settings: Settings, app: str) -> None:
    """Raise ``InvalidSettings`` for an app without a graph: a misspelt one would answer nothing, and pass in CI."""
    from graphweft_workers.wiring.apps import known_apps

    async with current_graph(settings, app) as graph:
        found = await known_apps(graph)
    if found is None or app in found:
        return
    known = sorted(found)
    shown = ", ".join(known[:_MOST_NAMED]) + (f" and {len(known) - _MOST_NAMED:,} others" * (len(known) > _MOST_NAMED))
    there = f"apps with one are {shown}" if known else "no app has one"
    raise InvalidSettings(
        f"the app {app!r} has no graph, so it has no memory{did_you_mean(app, known)}: {there}; correct --app, or emit "
        "its events first"
    )


@asynccontextmanager
async def _clients(settings: Settings, app: str, folder: Path | None) -> AsyncGenerator[tuple[Client, Client]]:
    """Yield the clients of both runs: of a responder, or with a folder of rules of this process.

    Then both are answered here, so that only the rules differ, and the graph of the rules is deleted at the end.
    """
    if folder is None:
        async with Client(transport=make_transport(settings), app_id=app) as client:
            yield client, client
        return
    set_up_command_logs(settings)
    async with running_app_log(settings, app) as log, AsyncExitStack() as stack:
        from graphweft_workers.archive.log_gaps import without  # the engine takes a while to import
        from graphweft_workers.replay.replay import failed_letters
        from graphweft_workers.wiring.embedder import with_default_embedder
        from graphweft_workers.wiring.given_graph import answered_here, replay_given

        with replay_progress(f"{app} by {folder}") as (tell, expect):
            expect(await log.entry_count())
            made = await stack.enter_async_context(replay_given(settings, log, folder, tell=tell))
        if made.gaps:
            warn(without(made.gaps))
        for letter in failed_letters(made.done.values()):
            warn(f"failed by {folder}: {letter.rule}/{letter.mutation} at {letter.offset}: {letter.message}")
        here = with_default_embedder(settings)
        lived = await stack.enter_async_context(answered_here(here, made.lived, log.live, app))
        given = await stack.enter_async_context(answered_here(here, made.rules, made.graph, app))
        yield lived, given


async def _evidence(settings: Settings, questions: Sequence[MemoryQuestion], app: str) -> list[Evidence]:
    if not any(question.expect for question in questions):
        return await evidence_of(questions, None, app)
    async with running_graph(settings) as graph:
        return await evidence_of(questions, graph, app)


async def _publish(
    settings: Settings, conversations: Sequence[Conversation], app: str, options: PublishOptions
) -> None:
    def groups() -> Iterator[Sequence[Event]]:
        for conversation in conversations:
            yield [event for event, _ in memories_of(conversation, app)]

    _, outcome = await publish(settings, read_between(groups()), options, harmless=True)
    if outcome is None or not outcome.complete:
        raise InvalidSettings("not all conversations were applied: see `graphweft dlq list` and `graphweft status`")


def varied(how: QuestionSettings, text: str) -> tuple[QuestionSettings, Path | None]:
    """Return the settings with those that ``--compare`` names, and the folder of rules. Raises ``InvalidSettings``."""
    found: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name not in _COMPARABLE:
            near = did_you_mean(name, _COMPARABLE)
            raise InvalidSettings(f"--compare: {name!r} is no setting{near}: write one of {', '.join(_COMPARABLE)}")
        if name == "max_tokens" and not (value.isascii() and value.isdigit() and int(value) > 0):
            raise InvalidSettings(f"--compare: {part.strip()!r} has no number from 1 on: write max_tokens=300")
        if name == "index_type" and value not in INDEX_TYPES:
            raise InvalidSettings(f"--compare: {part.strip()!r} is none of {', '.join(INDEX_TYPES)}")
        if not value.strip():
            raise InvalidSettings(f"--compare: {part.strip()!r} has no value: write {name}=NAME")
        found[name] = int(value) if name == "max_tokens" else value
    folder = found.pop("rules", None)
    return replace(how, **found), None if folder is None else Path(folder)


def limits_of(text: str | None) -> dict[str, float]:
    """Return the bounds by metric. Raises ``InvalidSettings``."""
    found: dict[str, float] = {}
    for part in (text or "").split(",") if text is not None else ():
        name, _, number = part.strip().partition("=")
        if name not in METRICS:
            near = did_you_mean(name, METRICS)
            raise InvalidSettings(f"--fail-under: {name!r} is no metric{near}: write one of {', '.join(METRICS)}")
        try:
            found[name] = float(number)
        except ValueError:
            found[name] = math.nan
        if not math.isfinite(found[name]):
            raise InvalidSettings(f"--fail-under: {part.strip()!r} has no number: write {name}=0.6")
        if found[name] < 0 or (name in SHARES and found[name] > 1):
            most = "from 0 to 1" if name in SHARES else "0 or more"
            raise InvalidSettings(f"--fail-under: {part.strip()!r} is no bound: {name} is {most}, so write {name}=0.6")
    return found
