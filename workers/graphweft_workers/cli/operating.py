"""``graphweft status``, ``dlq``, ``lint`` and ``doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from graphweft_contracts import DeadLetter, InvalidSettings, wire
from graphweft_workers.cli.options import Data, Json, Rules, command, require_running
from graphweft_workers.cli.output import console, print_json, print_table, say
from graphweft_workers.doctor import examine
from graphweft_workers.services import make_bus
from graphweft_workers.settings import Settings

__all__ = ("dlq_list", "dlq_retry", "dlq_show", "doctor", "lint", "status")

_MARKS = {"ok": "[green]ok[/]", "warn": "[yellow]warn[/]", "fail": "[bold red]fail[/]"}


@command
async def status(data: Data = None, json: Json = False) -> None:
    """Show where every partition stands, and how many dead letters there are."""
    settings = Settings.load(data=data)
    await require_running(settings)
    bus = make_bus(settings)
    try:
        partitions, letters = await bus.status(), await bus.dead_letter_count()
    finally:
        await bus.aclose()
    if json:
        rows = [{"id": p.id, "position": p.position, "end": p.end, "lag": p.lag, "owner": p.owner} for p in partitions]
        print_json({"partitions": rows, "lag": sum(p.lag for p in partitions), "dead_letters": letters})
        return
    print_table(
        ("partition", "position", "end", "lag", "worker"),
        [(str(p.id), p.position, p.end, p.lag, p.owner or "none") for p in partitions],
    )
    say(f"{letters} dead letters" + (" (graphweft dlq list)" if letters else ""))


@command
async def dlq_list(
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most letters to list.")] = 100,
    data: Data = None,
    json: Json = False,
) -> None:
    """List dead letters, oldest first."""
    settings = Settings.load(data=data)
    await require_running(settings)
    bus = make_bus(settings)
    try:
        letters = await bus.dead_letters(limit=limit)
    finally:
        await bus.aclose()
    if json:
        print_json([_letter(letter) for letter in letters])
        return
    print_table(
        ("id", "reason", "event", "rule", "message"),
        [(x.id, x.reason, x.event_type, f"{x.rule}/{x.mutation}" if x.rule else "", x.message) for x in letters],
    )


@command
async def dlq_show(
    letter_id: Annotated[str, typer.Argument(metavar="ID", help="The letter's id, from `dlq list`.")],
    data: Data = None,
    json: Json = False,
) -> None:
    """Show one dead letter with its event, which may hold personal data."""
    settings = Settings.load(data=data)
    await require_running(settings)
    bus = make_bus(settings)
    try:
        letter = await bus.dead_letter(letter_id)
    finally:
        await bus.aclose()
    if letter is None:
        raise InvalidSettings(f"there is no dead letter {letter_id!r}; `graphweft dlq list` shows those there are")
    fields = {k.decode("latin-1"): v.decode(errors="backslashreplace") for k, v in wire.unpack(letter.fields).items()}
    if json:
        print_json(_letter(letter) | {"fields": fields})
        return
    for name, value in _letter(letter).items():
        say(f"{name}: {value}")
    for name, text in fields.items():
        say(f"{name}: {text}")


@command
async def dlq_retry(
    letter_ids: Annotated[list[str] | None, typer.Argument(metavar="ID...", help="Letters to retry.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Retry all letters.")] = False,
    data: Data = None,
    json: Json = False,
) -> int | None:
    """Put events back on the bus after a fix; of each event only the mutation that failed runs again."""
    if bool(letter_ids) == every:
        raise InvalidSettings("name the letters to retry, or give --all")
    settings = Settings.load(data=data)
    await require_running(settings)
    bus = make_bus(settings)
    gone: list[str] = []
    retried = 0
    try:
        if every:
            chosen = list(await bus.dead_letters(limit=await bus.dead_letter_count() or 1))
        else:
            found = {name: await bus.dead_letter(name) for name in letter_ids or []}
            gone = [name for name, letter in found.items() if letter is None]
            chosen = [letter for letter in found.values() if letter is not None]
        for letter in chosen:
            retried += await bus.retry(letter)
    finally:
        await bus.aclose()
    if json:
        print_json({"retried": retried, "unknown": gone})
    else:
        say(f"{retried} events are back on the bus" + (f"; unknown: {', '.join(gone)}" if gone else ""))
    return 2 if gone else None


@command
async def lint(
    paths: Annotated[list[Path], typer.Argument(help="Rule files, workflow folders or folders of workflows.")],
    json: Json = False,
) -> int | None:
    """Check rule files; every finding comes with file:line:column. Exits with 1 when there are errors."""
    from graphweft_rules import lint as lint_rules

    findings = lint_rules(paths)
    if json:
        print_json([finding.to_dict() for finding in findings])
    else:
        for finding in findings:
            say(str(finding))
        errors = sum(finding.level == "error" for finding in findings)
        say(f"{errors} errors, {len(findings) - errors} warnings")
    return 1 if any(finding.level == "error" for finding in findings) else None


@command
async def doctor(data: Data = None, rules: Rules = None, json: Json = False) -> int | None:
    """Check settings, rules and services, and say what to do about what is wrong."""
    checks = await examine(Settings.load(data=data, rules=rules))
    if json:
        print_json([{"check": c.name, "state": c.state, "found": c.found, "advice": c.advice} for c in checks])
    else:
        for check in checks:
            console.print(f"{_MARKS[check.state]:>4} ", end="")
            say(f"{check.name}: {check.found}" + (f"\n     -> {check.advice}" if check.advice else ""))
    return 1 if any(check.state == "fail" for check in checks) else None


def _letter(letter: DeadLetter) -> dict[str, Any]:
    return letter.model_dump(mode="json", exclude={"fields"}, exclude_none=True)
