"""The checks of ``graphweft doctor``. Each says what it found and what to do."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, Protocol, runtime_checkable

from graphweft_contracts import BusUnavailable, GraphUnavailable, GraphweftError, InvalidSettings, QueryFailed, channels
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.plurals import counted
from graphweft_contracts.rules_log import Activation
from graphweft_rules.files.findings import errors
from graphweft_workers.archive.preludes import is_of_prelude, prelude_of, preludes_in, restored_apps
from graphweft_workers.engine.apply.older_graph import is_graph_behind
from graphweft_workers.engine.failures.dead_letter_counts import SKIPS, DeadLetterCause, count_causes
from graphweft_workers.engine.log.log_time import ClocksDiffer, log_time
from graphweft_workers.engine.usage.waits import wrong_clocks
from graphweft_workers.ports.check import Check
from graphweft_workers.ports.dead_letters import letter_count
from graphweft_workers.ports.graph_basis import GraphBasis, why_older
from graphweft_workers.ports.graph_store import GraphStore, MarksLost, OtherGraph
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.ports.partitions import PartitionStatus
from graphweft_workers.ports.position_note import PositionNote
from graphweft_workers.ports.purges import purges_after
from graphweft_workers.retrieval.embedded_models import models_text, other_models
from graphweft_workers.retrieval.stored_terms import outdated_terms
from graphweft_workers.rule_sets.lost_rule_sets import how_to_restore, lost_rule_sets
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.python_build import PythonBuild, this_build
from graphweft_workers.support.timing import TIMING
from graphweft_workers.wiring import connections
from graphweft_workers.wiring import features as jobs
from graphweft_workers.wiring.apps import apps_of_graphs
from graphweft_workers.wiring.archive_state import ArchiveState, archive_state
from graphweft_workers.wiring.connections import make_archive, make_bus, make_graph
from graphweft_workers.wiring.consolidation import make_summariser
from graphweft_workers.wiring.embedder import make_embedder, with_default_embedder
from graphweft_workers.wiring.extractor import make_extractor
from graphweft_workers.wiring.job_states import MODELS, JobState, job_states, waits_of
from graphweft_workers.wiring.policies import file_faults, token_ends
from graphweft_workers.wiring.query_check import check_queries
from graphweft_workers.wiring.rules import load_rules
from graphweft_workers.wiring.verdicts import make_judge

if TYPE_CHECKING:
    from graphweft_rules import RuleSet

__all__ = ("Check", "check_python", "examine")

_MOST_LETTERS: Final = 10_000
_MOST_NAMES: Final = 10
_BROKEN: Final = (
    "keep the archive, it holds what the bus lost; stop the workers and archivers, and run `graphweft bus mend all`, "
    "see docs/operations.md"
)
_NOT_ARCHIVED: Final = (
    "mend that; it goes on by itself then. What is not archived stays on the bus: watch its memory meanwhile"
)
_MEND: Final = "events of other partitions go on; docs/operations.md says how a partition is mended"
_AGAIN: Final = "try again; if it persists, look into the log of the server"
_START_ROLE: Final = "start `graphweft run"
_JOB: Final = "see the check of the job below"
_MOST_GRAPHS: Final = 300
_GRAPH_S: Final = 5.0


async def examine(settings: Settings, *, rights: str | None = None, app_id: str | None = None) -> list[Check]:
    """Return all checks, in an order in which a fault explains later ones.

    ``rights`` is a role whose rights on the bus are tried; by default a worker's, where the settings or the URL name a
    user. For other roles than a worker, what only a worker's user may read is not checked.
    """
    rules, rules_check = _rules(settings)
    checks = [
        check_python(platform.python_version(), this_build()),
        *_files(settings),
        rules_check,
        await _embedder(settings),
        await _extractor(settings),
        await _summariser(settings),
        await _judge(settings),
        _graphrag(settings, rules),
    ]
    checks += [_signatures(settings), *_key_files(settings)]
    bus = await _bus(settings)
    checks += [*bus, *connections.exposure("bus", settings.bus)]
    if rights is None and connections.bus_login(settings):
        rights = "worker"
    if rights is not None and bus[0].state == "ok":
        checks += await connections.examine_rights(settings, rights, app_id)
    if rights in ("tenant", "gateway"):
        return checks
    graph = await _graph(settings)
    checks += [*graph, *connections.exposure("graph", settings.graph)]
    if rules is not None and rules.workflows and all(check.state != "fail" for check in graph if check.name == "graph"):
        checks.append(await _queries(settings, rules))
    if all(check.state != "fail" for check in graph if check.name == "graph"):
        checks += await _owners(settings)
        checks += await _embedded(settings)
        checks += await _terms(settings)
        checks += await _graph_names(settings)
    states = {check.name: check.state for check in bus}
    if states["bus"] != "ok" or rights == "responder":
        return checks
    # Asking a new bus for its partitions would create them.
    if states.get("bus topic", "ok") == "ok":
        checks += await _clocks(settings)
        checks += await _services(settings)
        checks += await _archive(settings)
        checks = await _memory(settings, checks)
    elif states["bus topic"] == "warn":
        checks.append(_no_worker("no mutation worker has ever run"))
    checks.append(await _responders(settings))
    if states.get("bus disk") == "fail":
        return [_roles_unknown(check) if check.advice.startswith(_START_ROLE) else check for check in checks]
    return checks


def _roles_unknown(check: Check) -> Check:
    """Return the check of roles of which none seems to run: their leases end while the bus refuses all writes."""
    found = f"not known: no role can say that it runs while the bus refuses all writes; {check.found}"
    return replace(check, state="warn", found=found, advice="mend the disk of the bus first")


def check_python(version: str, build: PythonBuild) -> Check:
    """Say how Python was built. A slow build is no fault: nothing fails with it."""
    found = f"{version}, {build}"
    if build.is_slow:
        found += ": workers take up to 1.4 times the CPU; a build with --enable-optimizations --with-lto is quicker"
    return Check(name="python", state="ok", found=found)


def _files(settings: Settings) -> list[Check]:
    """Say which of the files of tokens and policies are faulty, and which are not looked at."""
    advice = "correct the file; running processes keep its earlier content, and new ones do not start"
    faults = [
        Check(name=name, state="fail", found=_without_name(name, text), advice=advice)
        for name, text in file_faults(settings).items()
    ]
    return [*faults, _looked_at(settings), *_tokens(settings)]


def _without_name(name: str, fault: str) -> str:
    """Return a fault of a file without the name of the setting, which is that of the check."""
    return "\n".join(line.removeprefix(f"{name}: ") for line in fault.splitlines())


def _looked_at(settings: Settings) -> Check:
    """Say which files of tokens and policies are read here: a running process may have others."""
    paths = {name: getattr(settings, name) for name in ("gateway_tokens", "console_tokens", "apps")}
    read = [f"{name} is {path}" for name, path in paths.items() if path is not None]
    unset = [f"GRAPHWEFT_{name.upper()}" for name, path in paths.items() if path is None]
    said = read + [f"not set here, so not looked at: {', '.join(unset)}"] * bool(unset)
    return Check(name="files", state="ok", found="; ".join(said))


def _tokens(settings: Settings, clock: Clock = SYSTEM_CLOCK) -> list[Check]:
    """Warn of tokens that have expired, or will within a week."""
    expired, soon = token_ends(settings, clock.now())
    said = [f"expired: {_listed(expired)}"] * bool(expired) + [f"expire within a week: {_listed(soon)}"] * bool(soon)
    advice = "`graphweft token new --app APP` makes a new one; remove from the file those that nobody uses"
    return [Check(name="tokens", state="warn", found="; ".join(said), advice=advice)] if said else []


def _rules(settings: Settings) -> tuple[RuleSet | None, Check]:
    try:
        rules = load_rules(settings)
    except InvalidSettings as error:
        advice = "create the folder, or set --rules or GRAPHWEFT_RULES"
        return None, Check(name="rules", state="fail", found=str(error), advice=advice)
    except GraphweftError as error:
        return None, Check(name="rules", state="fail", found=str(error), advice=f"graphweft lint {settings.rules}")
    names = ", ".join(sorted(rules.workflows)) or "none"
    if not rules.workflows:
        advice = "put rules into <Workflow>/graph_injection.yaml; `graphweft init` writes rules to begin with"
        return rules, Check(name="rules", state="warn", found=f"{settings.rules} holds no workflow", advice=advice)
    return rules, Check(name="rules", state="ok", found=f"{settings.rules}: {names}")


def _signatures(settings: Settings) -> Check:
    try:
        connections.signing_key(settings)
        keyring = connections.make_keyring(settings)
    except InvalidSettings as error:
        advice = "correct the file that GRAPHWEFT_SIGNING_KEYS names: workers and responders do not start with it"
        return Check(name="signatures", state="fail", found=str(error), advice=advice)
    if keyring is None and settings.signing_key is not None:
        return Check(
            name="signatures",
            state="warn",
            found="a signing key is set, but no file of keys: workers and responders check no signature",
            advice="set GRAPHWEFT_SIGNING_KEYS where workers and responders run",
        )
    if keyring is None:
        found = "no keys: whoever may write to the bus may write events of every app"
    else:
        found = f"{counted(len(keyring.apps), 'app has', 'apps have')} keys: {_listed(keyring.apps) or 'none'}"
    return Check(name="signatures", state="ok", found=found)


def _key_files(settings: Settings) -> list[Check]:
    """Warn of files with keys that others than their owner may read."""
    if settings.signing_keys is None:
        return []
    from graphweft_workers.engine.log.key_file import files_open_to_others

    try:
        open_files = files_open_to_others(settings.signing_keys)
    except InvalidSettings:
        return []  # ``_signatures`` tells
    return [
        Check(
            name="signing keys",
            state="warn",
            found=f"others than its owner may read or write {path} (mode {path.stat().st_mode & 0o777:o})",
            advice=f"chmod 600 {shlex.quote(str(path))}",
        )
        for path in open_files
    ]


def _graphrag(settings: Settings, rules: RuleSet | None) -> Check:
    """Say whether ``graphrag:`` queries are on, by these settings."""
    if settings.graphrag_enabled:
        return Check(name="graphrag", state="ok", found="on")
    if rules is not None and rules.asks_for_facts:
        advice = "set GRAPHRAG_ENABLED=true for the responder (and here), or remove `graphrag:` from the rules"
        return Check(name="graphrag", state="warn", found="off, but rules use `graphrag:`", advice=advice)
    return Check(name="graphrag", state="ok", found="off: `graphrag:` queries of rules return nothing")


async def _embedder(settings: Settings) -> Check:
    """Say which embedder is set. It is not called, because that may cost money."""
    try:
        settings = with_default_embedder(settings)
        embedder = make_embedder(settings)
    except InvalidSettings as error:
        advice = "correct this, or set GRAPHWEFT_EMBEDDER to another embedder"
        return Check(name="embedder", state="fail", found=str(error), advice=advice)
    if embedder is None:
        return Check(name="embedder", state="ok", found="none: searches use words and time, not meaning")
    try:
        return Check(name="embedder", state="ok", found=f"{settings.embedder}, recorded as {embedder.model!r}")
    finally:
        await embedder.aclose()


async def _embedded(settings: Settings) -> list[Check]:
    """Say which apps have memories with vectors of another model than the embedder's."""
    try:
        embedder = make_embedder(with_default_embedder(settings))
    except InvalidSettings:  # see ``_embedder``
        return []
    if embedder is None:
        return []

    async def others(graph: GraphStore, app_id: str) -> str:
        models = await other_models(graph, app_id, embedder.model, timeout_s=_GRAPH_S)
        return models_text(models) if models else ""

    async with aclosing(embedder):
        return await _of_apps(
            settings,
            "embedded memories",
            others,
            found=f"memories have vectors of another model than {embedder.model!r}",
            advice="searches find these memories by words only: run `graphweft memory embed --app` with the app, or "
            "set GRAPHWEFT_EMBEDDER to the model that embedded them",
        )


async def _terms(settings: Settings) -> list[Check]:
    """Say which apps have memories whose terms an earlier version wrote."""

    async def outdated(graph: GraphStore, app_id: str) -> str:
        number, of = await outdated_terms(graph, app_id, timeout_s=_GRAPH_S)
        return f"{number:,} of {of:,} that were looked at" if number else ""

    return await _of_apps(
        settings,
        "terms of memories",
        outdated,
        found="memories have terms of an earlier version",
        advice="searches find these memories by fewer words than new ones: `graphweft rebuild --app` with the app and "
        "--swap writes all terms anew from the log",
    )


async def _owners(settings: Settings) -> list[Check]:
    """Say which graphs are not those of the apps whose names they have."""

    async def other(graph: GraphStore, app_id: str) -> str:
        try:
            await graph.checkpoints(app_id, timeout_s=_GRAPH_S)
        except OtherGraph as error:
            return f"the graph of {error.owner}"
        return ""

    found = await _of_apps(
        settings,
        "owners of graphs",
        other,
        found="graphs of other apps are in the places of",
        advice="somebody has restored, copied or renamed them: put back those of these apps, or remove what is in "
        "their place; then the workers make them again from the log. The apps wait until then. An app gets another "
        "name by `graphweft export` and `graphweft restore --as`",
    )
    return [replace(check, state="fail") for check in found]


@runtime_checkable
class _Named(Protocol):
    """A graph store whose graphs have names of a template."""

    async def other_templates(self) -> Sequence[str]: ...


async def _graph_names(settings: Settings) -> list[Check]:
    """Warn if the server holds graphs under several names: each role sees those of its own setting only."""
    async with aclosing(make_graph(settings)) as graph:
        try:
            others = await graph.other_templates() if isinstance(graph, _Named) else ()
        except GraphUnavailable as error:
            return [Check(name="graph names", state="warn", found=f"not known: {error}", advice=_AGAIN)]
    if not others:
        return []
    found = (
        f"workers have also written graphs named {_listed(others)}; this setting is {settings.graph_template}, and a "
        "role with another one answers from another graph"
    )
    advice = (
        "set the same GRAPHWEFT_GRAPH_TEMPLATE for all roles. Once no role uses a name any more, delete its graphs, "
        "and the keys that begin with graphweft:positions: and that name"
    )
    return [Check(name="graph names", state="warn", found=found, advice=advice)]


async def _of_apps(
    settings: Settings, name: str, look: Callable[[GraphStore, str], Awaitable[str]], *, found: str, advice: str
) -> list[Check]:
    """Warn of the apps of which ``look`` says something; it is given the graph and an app."""
    apps: list[str] = []
    async with aclosing(make_graph(settings)) as graph:
        try:
            for app_id in (await apps_of_graphs(graph))[:_MOST_GRAPHS]:
                with suppress(OtherGraph, MarksLost):  # see ``_owners`` and ``_lost_graphs``
                    if said := await look(graph, app_id):
                        apps.append(f"{app_id}: {said}")
        except (GraphUnavailable, QueryFailed) as error:
            later = "check the graph server, then run this again"
            return [Check(name=name, state="warn", found=f"not known: {error}", advice=later)]
    if not apps:
        return []
    shown = "; ".join(apps[:_MOST_NAMES]) + ("; and others" if len(apps) > _MOST_NAMES else "")
    return [Check(name=name, state="warn", found=f"{found} ({shown})", advice=advice)]


class _Model(Protocol):
    async def aclose(self) -> None: ...


async def _model(name: str, given: str, make: Callable[[], _Model | None], nothing: str) -> Check:
    """Say which model a setting names, or what it means that there is none. It is not called: that may cost money."""
    try:
        model = make()
    except InvalidSettings as error:
        advice = f"correct this, or set GRAPHWEFT_{name.upper()} to another {name}"
        return Check(name=name, state="fail", found=str(error), advice=advice)
    if model is None:
        return Check(name=name, state="ok", found=nothing)
    await model.aclose()
    return Check(name=name, state="ok", found=given)


async def _extractor(settings: Settings) -> Check:
    nothing = "none: text episodes are stored, and found by their words"
    return await _model("extractor", settings.extractor, lambda: make_extractor(settings), nothing)


async def _summariser(settings: Settings) -> Check:
    used = settings.memory_summarise_after > 0
    nothing = "not used: GRAPHWEFT_MEMORY_SUMMARISE_AFTER is 0"
    return await _model("summariser", settings.summariser, lambda: make_summariser(settings) if used else None, nothing)


async def _judge(settings: Settings) -> Check:
    nothing = "none: rules alone say which statements end earlier ones"
    used = settings.judge != "none"
    return await _model("judge", settings.judge, lambda: make_judge(settings) if used else None, nothing)


async def _bus(settings: Settings) -> list[Check]:
    """Return the checks of the bus; the first one says whether it answers."""
    advice = "check GRAPHWEFT_BUS_URL, and that the server runs and accepts this machine"
    if settings.bus_url is None:
        advice = _start(settings, "GRAPHWEFT_BUS_URL", other=settings.graph_url is not None)
    try:
        return await connections.examine_bus(settings, advice)
    except InvalidSettings as error:
        return [_not_installed("bus", error)]


async def _graph(settings: Settings) -> list[Check]:
    advice = "check GRAPHWEFT_GRAPH_URL, and that the server runs and accepts this machine"
    if settings.graph_url is None:
        advice = _start(settings, "GRAPHWEFT_GRAPH_URL", other=settings.bus_url is not None)
    try:
        return await connections.examine_graph(settings, advice)
    except InvalidSettings as error:
        return [_not_installed("graph", error)]


async def _queries(settings: Settings, rules: RuleSet) -> Check:
    """Say whether the graph server accepts the queries of the rules."""
    try:
        async with aclosing(make_graph(settings)) as store:
            checked = await check_queries(store, (*rules.mutations, *rules.injections))
    except GraphweftError as error:
        refused = isinstance(error, QueryFailed)
        advice = "allow graphweft to check queries, or watch the dead letters" if refused else _AGAIN
        return Check(name="queries", state="warn", found=f"not checked: {error}", advice=advice)
    if not checked.findings:
        found = f"{counted(checked.count, 'query was', 'queries were')} checked by the server"
        return Check(name="queries", state="ok", found=found)
    found = "\n".join(map(str, checked.findings))
    if errors(checked.findings):
        advice = "correct them, then restart the worker and the responder: they do not start with these"
        return Check(name="queries", state="fail", found=found, advice=advice)
    return Check(name="queries", state="warn", found=found, advice="check whether the server lacks a plugin")


def _start(settings: Settings, variable: str, *, other: bool) -> str:
    """Return the advice for a server without a URL. ``up`` runs only if neither URL is set."""
    return f"set {variable} too" if other else f"start `graphweft up --data {settings.data}`, or set {variable}"


def _not_installed(name: str, error: InvalidSettings) -> Check:
    return Check(name=name, state="fail", found=str(error), advice="install it into the environment of graphweft")


def _not_known(name: str, error: BusUnavailable) -> Check:
    return Check(name=name, state="fail", found=f"not known: {error}", advice=_AGAIN)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_NAMES]) + (" and others" if len(names) > _MOST_NAMES else "")


async def _memory(settings: Settings, checks: Sequence[Check]) -> list[Check]:
    """Add whether the jobs of memory run, and what they wait for: also to the checks of the models that they ask."""
    try:
        async with aclosing(make_bus(settings)) as bus:
            states = await job_states(settings, bus)
    except BusUnavailable as error:
        return [*checks, *(_not_known(group, error) for group in jobs.groups(settings))]
    reasons = {MODELS[each.group]: each.waits[0].reason for each in states if each.waits and each.group in MODELS}
    found = [
        replace(check, state="warn", found=f"{check.found}; a job waits: {reasons[check.name]}", advice=_JOB)
        if check.state == "ok" and check.name in reasons
        else check
        for check in checks
    ]
    told = {channels.ARCHIVE_GROUP, channels.MUTATION_GROUP}  # by ``_archive`` and ``_services``
    of_jobs = [state for state in states if state.group not in told]
    return [*found, *(check for state in of_jobs if (check := _job(state)) is not None)]


def _job(state: JobState) -> Check | None:
    """Return the check of a job; None if nothing is known of it, and these settings do not ask for it."""
    if state.waits:
        longest = min(state.waits, key=lambda each: each.since)
        found = f"waits since {longest.since} (worker {longest.worker}): {longest.reason}"
        return Check(name=state.group, state="warn", found=found, advice=longest.next)
    if state.lag is None:
        return None
    if state.idle:
        found = _idle(state.idle, state.partitions, state.lag)
        return Check(name=state.group, state="warn", found=found, advice=f"{_START_ROLE} memory`")
    return Check(name=state.group, state="ok", found=_all_read(state.partitions, state.lag))


def _idle(idle: Sequence[int], partitions: int, lag: int) -> str:
    """Say which partitions nobody reads: some by their numbers, all by their count."""
    if len(idle) == partitions > 1:
        return f"nobody reads any of the {partitions} partitions, lag {lag}"
    which = "partition" if len(idle) == 1 else "partitions"
    return f"nobody reads the {which} {', '.join(map(str, idle))}, lag {lag}"


def _all_read(partitions: int, lag: int) -> str:
    read = counted(partitions, "partition is read", "partitions are read")
    return f"{read}, lag {lag}" if partitions == 1 else f"all {read}, lag {lag}"


async def _archive(settings: Settings) -> list[Check]:
    """Say how far the archive is, and what the bus has lost."""
    try:
        async with aclosing(make_bus(settings, group=channels.ARCHIVE_GROUP, archived=False)) as bus:
            partitions = await bus.partitions.status()
            state = await archive_state(settings, bus, partitions)
            waits = waits_of(settings, channels.ARCHIVE_GROUP, (await bus.usage.after(None)).found)
    except BusUnavailable as error:
        return [_not_known("archive", error)]
    if not state.enabled and not state.lost:
        return []
    if waits and not state.breaks:
        longest = min(waits, key=lambda each: each.since)
        found = f"{state.text()}; worker {longest.worker} archives nothing since {longest.since}: {longest.reason}"
        return [Check(name="archive", state="fail", found=found, advice=_NOT_ARCHIVED)]
    found, advice = state.text(), _archive_advice(settings, state, partitions)
    if state.enabled and not settings.archives:
        found += f"; in {settings.archive}, where an erasure keeps the log, too. The bus keeps what is new"
    if state.breaks:  # a fault that stays, whatever else there is
        return [Check(name="archive", state="fail", found=found, advice=_BROKEN)]
    return [Check(name="archive", state="warn" if advice else "ok", found=found, advice=advice)]


def _archive_advice(settings: Settings, state: ArchiveState, partitions: Sequence[PartitionStatus]) -> str:
    """Return what to do for the archive. An archive that no setting names, as an erasure leaves it, needs no role."""
    idle = sum(each.owner is None for each in partitions)
    advice = ""
    if state.error:
        advice = "check GRAPHWEFT_ARCHIVE_URL, and that this machine may read it"
    elif state.lost:
        advice = "a rebuild from the start is not possible. Trim with `graphweft trim` only, and set no retention"
        if state.enabled:
            advice += "; `graphweft archive verify --accept-lost` lets replays and erasures go on without these entries"
        if not state.enabled:
            advice += "; archive the log before (GRAPHWEFT_ARCHIVE_URL, `graphweft run archive`)"
    elif state.to_rebuild:
        advice = f"run `graphweft rebuild --app {state.to_rebuild[0]} --swap`, and the same for each other app"
    elif state.behind and idle and settings.archives:
        advice = f"{_START_ROLE} archive`: nobody archives {idle} of {counted(len(partitions), 'partition')}"
    return advice


async def _clocks(settings: Settings) -> list[Check]:
    """Say if the clock of this host and that of the bus differ: deadlines, ages and the ends of keys go by them."""
    try:
        async with aclosing(make_bus(settings)) as bus:
            if bus.time is not None:
                await log_time(bus, skew_s=TIMING.memory.skew_s)
    except ClocksDiffer as error:
        advice = "the clock of each host that runs a role must be right too: the check of a job names one that is not"
        return [Check(name="clock", state="warn", found=str(error), advice=advice)]
    except BusUnavailable as error:
        return [_not_known("clock", error)]
    return []


async def _services(settings: Settings, clock: Clock = SYSTEM_CLOCK) -> list[Check]:
    try:
        async with aclosing(make_bus(settings)) as bus:
            partitions = await bus.partitions.status()
            letters = await letter_count(bus.dead_letters)
            causes = count_causes(await bus.dead_letters.read(limit=_MOST_LETTERS, whole=False)) if letters else []
            activations = await bus.rules.activations()
            lost = await lost_rule_sets(bus.rules, activations)
            records = (await bus.usage.after(None)).found
            waits = waits_of(settings, channels.MUTATION_GROUP, records)
            needed = (await purges_after(bus.purges, None)).needed
    except BusUnavailable as error:
        return [_not_known("workers", error)]
    used = {each.digest for each in {each.scope: each for each in activations}.values()}
    idle = [partition.id for partition in partitions if partition.owner is None]
    lag = sum(partition.lag for partition in partitions)
    found = _idle(idle, len(partitions), lag)
    if not idle:
        checks = [Check(name="workers", state="ok", found=_all_read(len(partitions), lag))]
    elif len(idle) == len(partitions):
        checks = [_no_worker(f"no mutation worker runs: {found}")]
    else:  # a rebalance, or a worker has just ended
        advice = "look again in a minute; if it persists, start another `graphweft run mutation`"
        checks = [Check(name="workers", state="warn", found=found, advice=advice)]
    faults = [
        Check(name="partition", state="fail", found=f"{each.id}: {each.fault}", advice=_MEND)
        for each in partitions if each.fault
    ]  # fmt: skip
    faults += [
        Check(
            name="partition", state="fail", advice=each.next,
            found=f"{counted(each.partitions, 'partition')} of worker {each.worker} failed again and again since "
            f"{each.since}: {each.reason}",
        )
        for each in waits
    ]  # fmt: skip
    faults += [
        Check(name="clock", state="fail", found=found, advice="synchronize the clocks of all hosts by NTP")
        for found in wrong_clocks(records, clock.now().timestamp())
    ]
    checks += await _older_graphs(settings, partitions)
    checks += await _erased_again(settings, needed)
    return [*checks, *faults, *_without_effect(letters, causes), *_parked(partitions), *_lost(lost.values(), used)]


def _without_effect(letters: int, causes: Sequence[DeadLetterCause]) -> list[Check]:
    checks: list[Check] = []
    if letters:
        advice = "graphweft dlq list"
        checks.append(Check(name="dead letters", state="warn", found=counted(letters, "waits", "wait"), advice=advice))
    gone = sum(cause.events for cause in causes if cause.reason == "trimmed")
    if gone:
        found = (
            f"{counted(gone, 'event is', 'events are')} gone from the log: before they took effect or took it again, "
            "or where a rebuild needs them"
        )
        advice = (
            "`graphweft dlq list --reason trimmed` says which, and what to do; drop these letters to accept the loss"
        )
        checks.append(Check(name="lost events", state="fail", found=found, advice=advice))
    skips = [cause for cause in causes if cause.reason in SKIPS]
    if skips:
        worst = skips[0]
        place = f" at {worst.place}" if worst.place else ""
        found = (
            f"{counted(sum(cause.events for cause in skips), 'time')}, by {counted(len(skips), 'cause')}; most often "
            f"{worst.name}{place} of app {worst.app_id!r}: {worst.message}"
        )
        advice = "`graphweft status` lists the causes; after a fix: `graphweft rules push`, `graphweft dlq retry --all`"
        checks.append(Check(name="skipped", state="warn", found=found, advice=advice))
    return checks


async def _older_graphs(settings: Settings, partitions: Sequence[PartitionStatus]) -> list[Check]:
    """Say whether the graphs are as far as the workers were, by what the graph server says itself."""
    notes = {each.id: PositionNote.decode(each.note) for each in partitions}
    store = make_graph(settings)
    try:
        positions = await store.positions()
        if positions is None:
            return []
        behind = [
            each.id for each in partitions
            if not notes[each.id].again and is_graph_behind(each.position, notes[each.id], positions.get(each.id))
        ]  # fmt: skip
        lost = await _lost_graphs(store, [each.id for each in partitions if each.id in positions])
        lost += await _without_history(settings, store)
    except GraphweftError:
        return []  # another check says that the server does not answer
    finally:
        await store.aclose()
    checks: list[Check] = []
    if behind:
        numbers = ", ".join(map(str, behind[:_MOST_NAMES]))
        found = f"older than the log in {counted(len(behind), 'partition')}: {numbers}"
        advice = "a worker notices within seconds and applies the events again; start one, or look into its log"
        checks.append(Check(name="graphs", state="fail", found=found, advice=advice))
    if again := [number for number, note in notes.items() if note.again]:
        found = f"they were older than the log, and catch up in {counted(len(again), 'partition')}"
        advice = "`graphweft status` shows how far they are"
        checks.append(Check(name="graphs", state="warn", found=found, advice=advice))
    if lost and not behind and not again:
        lost = sorted({*lost})
        found = f"deleted, or older than they were: {_listed(lost)}"
        advice = f"graphweft rebuild --app {lost[0]} --swap"
        checks.append(Check(name="graphs", state="fail", found=found, advice=advice))
    return checks


async def _erased_again(settings: Settings, needed: Mapping[str, GraphBasis]) -> list[Check]:
    """Name graphs from before an erasure or a restatement of which the bus says that it reached the graph."""
    apps: list[str] = []
    async with aclosing(make_graph(settings)) as store:
        for app_id in sorted(needed)[:_MOST_GRAPHS]:
            try:
                if await why_older(store, app_id, needed[app_id], timeout_s=_GRAPH_S):
                    apps.append(app_id)
            except (QueryFailed, MarksLost):  # of this app alone
                continue
            except GraphUnavailable:
                return []  # another check says that the server does not answer
    if not apps:
        return []
    found = f"from before something was erased, or the past was restated, and may hold it again: {_listed(apps)}"
    advice = f"graphweft rebuild --app {apps[0]} --swap; until then no context of the app is served"
    return [Check(name="graphs", state="fail", found=found, advice=advice)]


async def _lost_graphs(store: GraphStore, partitions: Sequence[int]) -> list[str]:
    """Return the apps whose graphs have not reached what they had; it looks at some hundreds at most."""
    reached: dict[str, dict[int, str]] = {}
    for number in partitions:
        for app_id, offset in (await store.reached(number)).items():
            if len(reached) < _MOST_GRAPHS or app_id in reached:
                reached.setdefault(app_id, {})[number] = offset
    found: list[str] = []
    for app_id, offsets in reached.items():
        try:
            checkpoints = await store.checkpoints(app_id, timeout_s=_GRAPH_S)
            at = {number: checkpoint.offset for number, checkpoint in checkpoints.items()}
        except OtherGraph:  # see ``_owners``
            continue
        except MarksLost:
            at = {}
        if any(is_after(offset, at.get(number, "")) for number, offset in offsets.items()):
            found.append(app_id)
    return sorted(found)


async def _without_history(settings: Settings, store: GraphStore) -> list[str]:
    """Return the apps that were restored from an export and whose graphs lack what came with it."""
    if settings.archive_url is None:
        return []
    found: list[str] = []
    blobs = make_archive(settings)
    for app_id in (await restored_apps(blobs))[:_MOST_GRAPHS]:
        try:
            marks = await store.checkpoints(app_id, timeout_s=_GRAPH_S)
        except (OtherGraph, MarksLost):  # see ``_owners`` and ``_lost_graphs``
            continue
        there = {prelude_of(number) for number in marks if is_of_prelude(number)}
        if any(prelude.number not in there for prelude in await preludes_in(blobs, app_id)):
            found.append(app_id)
    return found


_ADVICE: Final = {
    "slow": "slow, unavailable: check the workers' log and the queries of their rules",
    "unavailable": "slow, unavailable: check the workers' log and the queries of their rules",
    "slow_writes": "slow_writes: `graphweft lint` names mutations that compute after their first write",
    "dear_events": "dear_events: make the conditions of their rules cheaper, which `graphweft lint` names",
    "rules_lost": "rules_lost: push the lost rule sets again",
}
"""By the reason for which an app is parked."""


def _parked(partitions: Iterable[PartitionStatus]) -> list[Check]:
    """Say which apps are parked. No other app need be on their partitions."""
    parked = [item for partition in partitions for item in PositionNote.decode(partition.note).parked.items()]
    apps = sorted({app for app, _ in parked})
    if not apps:
        return []
    if older := sorted({app for app, each in parked if each.why == "needs_rebuild"}):
        found = f"graphs that do not fit the log, and cannot catch up: {', '.join(older[:_MOST_NAMES])}"
        advice = f"graphweft rebuild --app {older[0]} --swap; the workers' log says why"
        return [Check(name="parked", state="fail", found=found, advice=advice)]
    if other := sorted({app for app, each in parked if each.why == "other_graph"}):
        found = f"the graphs under the names of these apps are those of other apps: {_listed(other)}"
        advice = "put back their graphs, or remove what is in their place; the workers' log says whose these are"
        return [Check(name="parked", state="fail", found=found, advice=advice)]
    whys = {app: each.why for app, each in parked}
    names = _listed([f"{app} ({whys[app]})" for app in apps])
    fixes = [_ADVICE.get(why, _ADVICE["slow"]) for why in sorted({*whys.values()})]
    advice = "; ".join(["`graphweft status` shows since when", *fixes])
    return [Check(name="parked", state="warn", found=f"apps that are behind: {names}", advice=advice)]


def _lost(lost: Iterable[Activation], active: Collection[str]) -> list[Check]:
    """Say which rule sets the bus has lost. One that is not active matters for events that wait, and for replays."""
    checks: list[Check] = []
    for each in lost:
        found, _, advice = how_to_restore(each).partition(". ")
        state: Literal["fail", "warn"] = "fail" if each.digest in active else "warn"
        checks.append(Check(name="rules on the bus", state=state, found=found, advice=advice))
    return checks


def _no_worker(found: str) -> Check:
    return Check(name="workers", state="fail", found=found, advice=f"{_START_ROLE} mutation`")


async def _responders(settings: Settings) -> Check:
    try:
        if fault := await connections.request_fault(settings):
            found, advice = f"the queue of context requests: {fault}", "no context is answered until then"
            return Check(name="responders", state="fail", found=found, advice=advice)
        alive = await connections.responders(settings)
    except BusUnavailable as error:
        return _not_known("responders", error)
    if alive:
        return Check(name="responders", state="ok", found=f"{len(alive)} answer context requests")
    advice = f"{_START_ROLE} injection`"
    return Check(name="responders", state="fail", found="no responder answers", advice=advice)
