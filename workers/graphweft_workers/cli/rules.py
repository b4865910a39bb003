"""``graphweft rules``: rule sets in the log."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphweft_contracts import GraphUnavailable, InvalidSettings, NotRunning
from graphweft_contracts.events import DEFAULT_WORKFLOW
from graphweft_contracts.layout import ALL_APPS
from graphweft_contracts.plurals import counted
from graphweft_contracts.rules_log import (
    SHARED_RULES,
    Activation,
    StoredRules,
    active_for,
    changed_files,
    newest,
    own_rules,
)
from graphweft_workers.cli.options import App, Data, Json, check_app, command
from graphweft_workers.cli.output import show, warn
from graphweft_workers.new_project import is_default, write_project
from graphweft_workers.ports.bus import Bus
from graphweft_workers.reports.entries import activation_dict
from graphweft_workers.reports.report import Notice, Part, PlainReport, TextTable
from graphweft_workers.reports.rule_sets import named_digest, short_digest
from graphweft_workers.rule_sets.lost_rule_sets import how_to_restore
from graphweft_workers.rule_sets.own_rules import own_rules_note, share_rules
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.running import running_bus

if TYPE_CHECKING:
    from graphweft_rules.matching.sound_rules import SoundRules

Scope = Annotated[
    str | None, typer.Option("--app", help="The app whose rules these are.", show_default="all apps without their own")
]
Folder = Annotated[Path | None, typer.Argument(help="Folder of workflows.", show_default="the folder of rules")]
_NO_RULES = b'version: "1.0"\nmutation_rules: []\n'


@command
async def rules_push(
    folder: Folder = None,
    app: Scope = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check, show what would change, and push nothing.")
    ] = False,
    unchecked: Annotated[
        bool, typer.Option("--unchecked", help="Push although no graph server can check the queries.")
    ] = False,
    leave_broken: Annotated[
        bool,
        typer.Option("--leave-broken", help="Workflows with errors keep their active rules; push those of the others."),
    ] = False,
    data: Data = None,
    json: Json = False,
) -> None:
    """Check rules and make them active: workers and responders follow at one place of the log, without a restart.

    Rules with errors are not pushed. Events that were published before follow the rules that were active then.
    """
    from graphweft_rules import RuleSet
    from graphweft_workers.wiring.connections import make_graph
    from graphweft_workers.wiring.default_rules import with_default_rules
    from graphweft_workers.wiring.query_check import refuse_wrong_queries
    from graphweft_workers.wiring.rules import active_files, load_rules, load_sound_rules, push, store

    scope = _scope(app)
    settings = Settings.load(data=data, rules=folder)
    sound: SoundRules | None = None
    rules = RuleSet({}) if leave_broken else load_rules(settings)
    async with running_bus(settings) as bus:
        activations = await bus.rules.activations()
        active = newest(activations, scope)
        stored = await bus.rules.stored(active.digest) if active else None
        before: Mapping[str, bytes] = stored.files if stored else {}
        graph = make_graph(settings)
        try:
            if leave_broken:
                sound = await load_sound_rules(settings, graph, before)
                rules = sound.rules
            if not rules.workflows:
                raise InvalidSettings(_none_in(settings.rules))
            rules = with_default_rules(rules, settings.rules, await active_files(bus, scope))
            await refuse_wrong_queries(graph, (*rules.mutations, *rules.injections))
        except GraphUnavailable as error:
            if not unchecked:
                raise NotRunning(
                    f"no graph server checked the queries: {error}. Start it, or push with --unchecked"
                ) from error
        finally:
            await graph.aclose()
        changes = changed_files(before, rules.files)
        pushed: Activation | None = None
        found_again = (scope, rules.digest) in {(each.scope, each.digest) for each in activations} and (
            await bus.rules.stored(rules.digest) is None
        )
        is_active = active is not None and active.digest == rules.digest
        if not dry_run and (is_active or found_again):
            # Events wait for a lost one, whether it is to be active now or not. Another version may have stored an
            # active one without a summary.
            await store(bus, rules)
        elif not dry_run:
            pushed = await push(bus, rules, scope)
    if active is not None and stored is None and not is_active:
        warn(how_to_restore(active))
    short = short_digest(rules.digest)
    state = f"{short} was not pushed" if dry_run else _state_of(short, scope, pushed, is_active=is_active)
    again = f"{short} was lost, and is on the bus again: the events that wait for it are applied"
    parts: list[Part] = [*map(Notice, _warnings(settings.rules, sound))]
    parts += _change_lines(changes, rules.files, settings.rules)
    parts += [again, state] if found_again and not dry_run else [state]
    parts += _not_reached(activations, scope)
    found = {"rules": rules.digest, "scope": scope, "number": pushed and pushed.number, "found_again": found_again}
    show(PlainReport({**found, "changes": changes, **({} if sound is None else _left(sound))}, parts), json=json)


def _change_lines(changes: Mapping[str, list[str]], files: Mapping[str, bytes], root: Path) -> Iterator[str]:
    from graphweft_workers.wiring.default_rules import has_default_rules

    for change, names in changes.items():
        yield from (f"{change:>8}  {name}" for name in names)
    if has_default_rules(files) and not (root / DEFAULT_WORKFLOW).exists():
        yield f"the default rules stay active beside them, until there is a folder {root / DEFAULT_WORKFLOW}"


@command
async def rules_list(data: Data = None, json: Json = False) -> None:
    """List the activations of rule sets, the newest last.

    Rules that are active for an app replace those of all apps for it, until `rules unset --app APP`.
    """
    async with running_bus(Settings.load(data=data)) as bus:
        found = await bus.rules.activations()
    newest = {each.scope: each.number for each in found}
    rows = [(each, each.restates is None and newest[each.scope] == each.number) for each in found]
    table = TextTable(
        ("number", "app", "rules", "time", ""),
        [
            (str(e.number), e.restates or e.scope, named_digest(e.digest), _time(e), _state(e, active))
            for e, active in rows
        ],
    )
    none = [] if found else ["no rules were pushed yet: run `graphweft rules push`"]
    show(PlainReport([{**_dict(each), "active": active} for each, active in rows], [table, *none]), json=json)


@command
async def rules_show(
    rules: Annotated[str | None, typer.Argument(help="Its hash, or the first digits.", show_default="active")] = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", help="Write the files into this new folder instead, as `rules push` reads it."),
    ] = None,
    app: Scope = None,
    data: Data = None,
    json: Json = False,
) -> None:
    """Show the files of a rule set, by default of the active one, or write them into a folder."""
    async with running_bus(Settings.load(data=data)) as bus:
        chosen = _find(await bus.rules.activations(), rules, _scope(app))
        digest, files = chosen.digest, await _files(bus, chosen)
    texts = {name: _text(content) for name, content in files.items()}
    if to is not None:
        _write(to, files)
        said = [f"the rules {short_digest(digest)} are in {to}: {counted(len(files), 'file')}"]
        show(PlainReport({"rules": digest, "files": texts, "folder": str(to)}, said), json=json)
        return
    shown = (f"# {short_digest(digest)} {name}\n{text}" for name, text in sorted(texts.items()))
    show(PlainReport({"rules": digest, "files": texts}, shown), json=json)


@command
async def rules_diff(
    other: Annotated[str, typer.Argument(help="Hash of a rule set, or a folder of workflows.")],
    rules: Annotated[str | None, typer.Argument(help="The rule set to compare with.", show_default="active")] = None,
    app: Scope = None,
    data: Data = None,
    json: Json = False,
) -> None:
    """Show how a rule set, or a folder, differs from the active one. Exits with 0 in any case."""
    from graphweft_workers.wiring.rules import load_rules

    if not other:
        raise InvalidSettings("OTHER is empty: give the hash of a rule set, or a folder of workflows")
    settings = Settings.load(data=data)
    async with running_bus(settings) as bus:
        found = await bus.rules.activations()
        before = await _files(bus, _find(found, rules, _scope(app)))
        if Path(other).is_dir():
            after = load_rules(Settings.load(data=data, rules=Path(other))).files
        else:
            try:
                chosen = _find(found, other, _scope(app))
            except InvalidSettings as error:
                raise InvalidSettings(f"{error}. There is no folder {other!r} either") from None
            after = await _files(bus, chosen)
    lines = [
        line
        for name in sorted({*before, *after})
        for line in difflib.unified_diff(
            _text(before.get(name, b"")).splitlines(),
            _text(after.get(name, b"")).splitlines(),
            f"a/{name}",
            f"b/{name}",
            lineterm="",
        )
    ]
    show(PlainReport({"changes": changed_files(before, after), "diff": lines}, lines or ["no difference"]), json=json)


@command
async def rules_rollback(app: Scope = None, data: Data = None, json: Json = False) -> None:
    """Make the rule set active again that was active before the present one.

    For an app that had no rules of its own before, those are the rules of all apps. Your folder of rules stays as it
    is: the next push, or the next start of `up`, makes active what it holds.
    """
    scope = _scope(app)
    async with running_bus(Settings.load(data=data)) as bus:
        activations = await bus.rules.activations()
        found = [each.digest for each in activations if each.scope == scope]
        if found and scope != ALL_APPS and newest(activations, ALL_APPS) is not None:
            found.insert(0, SHARED_RULES)
        earlier = [digest for digest in found if digest != found[-1]]
        if not earlier:
            raise InvalidSettings(
                f"there is no earlier rule set for {_scope_text(scope)}; `graphweft rules list` shows all activations"
            )
        shares = earlier[-1] == SHARED_RULES
        made = await share_rules(bus.rules, scope) if shares else await bus.rules.activate(scope, earlier[-1])
    if shares:
        said = [_shares(made)]
    else:
        short = short_digest(made.digest)
        pushes = "push, save under `graphweft up` or start of it" if scope == ALL_APPS else f"push with --app {scope}"
        said = [
            f"{short} is active again for {_scope_text(scope)}, as number {made.number}",
            f"Your folder of rules is as it was, and the next {pushes} makes active what it holds: correct it. "
            f"`graphweft rules show {short} --to FOLDER` writes the rules that are active now into a new folder",
        ]
    show(PlainReport(_dict(made), [*said, *_not_reached(activations, scope)]), json=json)


@command
async def rules_unset(app: App, data: Data = None, json: Json = False) -> None:
    """End the rules that an app has of its own: it follows the rules of all apps again, from here on."""
    async with running_bus(Settings.load(data=data)) as bus:
        found = await bus.rules.activations()
        if app not in own_rules(found):
            raise InvalidSettings(
                f"the app {app} has no rules of its own; `graphweft rules list` shows all activations"
            )
        if newest(found, ALL_APPS) is None:
            raise InvalidSettings(
                f"no rules are active for all apps, so the app {app} would have none: run `graphweft rules push` first"
            )
        made = await share_rules(bus.rules, app)
    show(PlainReport(_dict(made), [_shares(made)]), json=json)


@command
async def rules_ignore(
    workflow: Annotated[str, typer.Argument(help="Name of a workflow without rules.")],
    app: Scope = None,
    data: Data = None,
    json: Json = False,
) -> None:
    """Pass over the events of a workflow on purpose: they change no graph, and are no dead letters any more.

    It adds the workflow, with an empty list of rules, to the active rule set. With --app, an app without rules of its
    own gets a copy of those of all apps, and does not follow them any more, until `rules unset --app APP`.
    """
    from graphweft_contracts.rules_log import digest_of
    from graphweft_rules.files.loader import FILE_NAME, workflow_files

    scope = _scope(app)
    file = f"{workflow}/{FILE_NAME}"
    async with running_bus(Settings.load(data=data)) as bus:
        found = await bus.rules.activations()
        active = active_for(found, scope)
        files = dict(await _files(bus, active)) if active is not None else {}
        if file in files:
            raise InvalidSettings(
                f"the workflow {workflow!r} has the rules {file} already; `graphweft rules show` prints them"
            )
        files[file] = _NO_RULES
        if workflow not in workflow_files([file]):
            raise InvalidSettings(f"{workflow!r} cannot be the name of a workflow: it is a folder name of rules")
        digest = digest_of(files)
        await bus.rules.store(digest, StoredRules(files=files))
        made = await bus.rules.activate(scope, digest)
    said = [
        f"events of the workflow {workflow} have no effect for {_scope_text(scope)}, by {short_digest(digest)}",
    ]
    if scope == ALL_APPS:
        said += [
            f"Your folder of rules does not say so: add {file} with `mutation_rules: []`, or the next push forgets it",
            *_not_reached(found, scope),
        ]
    elif scope in own_rules(found):
        said.append(
            f"If the rules of the app {scope} are in a folder, it does not say so: add {file} with "
            f"`mutation_rules: []`, or the next `graphweft rules push --app {scope}` forgets it"
        )
    else:
        said.append(
            f"For this, the app {scope} has rules of its own now, a copy of those of all apps, and does not follow "
            f"these any more. `graphweft rules unset --app {scope}` ends both. To ignore the workflow and follow "
            f"them, add {file} with `mutation_rules: []` to your folder of rules and push it, before you run that"
        )
    show(PlainReport(_dict(made), said), json=json)


def _shares(made: Activation) -> str:
    return f"the app {made.scope} follows the rules of all apps again, from number {made.number} on"


def _not_reached(activations: Sequence[Activation], scope: str) -> list[str]:
    """Return a line about the apps that rules of all apps do not reach; none for a scope of one app."""
    note = own_rules_note(activations) if scope == ALL_APPS else ""
    return [note] if note else []


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a rule set into a new or empty folder: pushed from there, they have the same hash."""
    try:
        if folder.is_dir() and next(folder.iterdir(), None) is not None:
            raise InvalidSettings(f"{folder} is not empty: name a new folder for the rules")
    except OSError as error:
        raise InvalidSettings(f"cannot read the folder {folder}: {error.strerror}") from error
    texts: dict[str, str] = {}
    for name, content in files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise InvalidSettings(f"the rule set has the file {name!r}, which would be outside of {folder}")
        try:
            texts[name] = content.decode()
        except UnicodeDecodeError as error:
            raise InvalidSettings(f"the file {name!r} of the rule set is not UTF-8 text: {error.reason}") from None
    write_project(folder, texts)


def _state_of(short: str, scope: str, pushed: Activation | None, *, is_active: bool) -> str:
    if pushed is not None:
        return f"{short} is active for {_scope_text(scope)} as number {pushed.number}"
    if is_active:
        return f"{short} is active for {_scope_text(scope)} already"
    return f"{short} is not active for {_scope_text(scope)}: push it once more to make it so"


def _none_in(folder: Path) -> str:
    from graphweft_rules.files.loader import unread_files

    unread = "".join(f"\n{finding}" for finding in unread_files(folder))
    return f"{folder} holds no rules: put them into <Workflow>/graph_injection.yaml{unread}"


def _warnings(folder: Path, sound: SoundRules | None) -> Iterator[str]:
    """Yield which files nobody reads, and what is wrong with workflows that were left out of a push."""
    from graphweft_rules.files.loader import unread_files

    yield from map(str, unread_files(folder))
    if sound is None:
        return
    yield from map(str, sound.findings)
    for name in sound.kept:
        yield f"{name} has errors and keeps its active rules"
    for name in sound.absent:
        yield f"{name} has errors and no active rules: its events become dead letters until you push it"


def _left(sound: SoundRules) -> dict[str, Any]:
    findings = [finding.to_dict() for finding in sound.findings]
    return {"kept": list(sound.kept), "absent": list(sound.absent), "findings": findings}


def _scope(app: str | None) -> str:
    if app is None or app == ALL_APPS:
        return ALL_APPS
    check_app(app)
    return app


def _scope_text(scope: str) -> str:
    return "all apps" if scope == ALL_APPS else f"the app {scope}"


def _find(found: Sequence[Activation], rules: str | None, scope: str) -> Activation:
    """Return the newest activation of the rule set that starts with the given digits, or of the active one."""
    if rules == "":
        raise InvalidSettings("the hash of the rule set is empty; `graphweft rules list` shows the hashes")
    if rules is None:
        active = active_for(found, scope)
        if active is None:
            raise InvalidSettings(f"no rules are active for {_scope_text(scope)}: run `graphweft rules push`")
        return active
    digests = {each.digest: each for each in found if each.digest.startswith(rules.lower())}
    if len(digests) != 1:
        fault = "no rule set" if not digests else f"{len(digests)} rule sets"
        raise InvalidSettings(f"{fault} with a hash that starts with {rules!r}; `graphweft rules list` shows them")
    [chosen] = digests.values()
    return chosen


async def _files(bus: Bus, activation: Activation) -> Mapping[str, bytes]:
    stored = await bus.rules.stored(activation.digest)
    if stored is None:
        raise InvalidSettings(how_to_restore(activation))
    return stored.files


def _time(activation: Activation) -> str:
    return f"{activation.time:%Y-%m-%d %H:%M:%SZ}"


def _state(activation: Activation, active: bool) -> str:
    if activation.restates is not None:
        return "of the events before it"
    return "active" if active else ""


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")


def _dict(activation: Activation) -> dict[str, Any]:
    positions = {str(number): offset for number, offset in activation.positions.items()}
    return activation_dict(activation) | {"default": is_default(activation.digest), "positions": positions}
