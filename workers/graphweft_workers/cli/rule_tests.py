"""``graphweft test``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from graphweft_contracts import InvalidSettings
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_rules.files.findings import RulesError, errors
from graphweft_rules.files.loader import FILE_NAME, TESTS, discover
from graphweft_rules.rule_tests.folder import RuleTests, load_tests
from graphweft_rules.rule_tests.judge import failures_of
from graphweft_rules.rule_tests.model import Case
from graphweft_rules.rule_tests.outcome import CaseFailure
from graphweft_workers.cli.command_logs import set_up_command_logs
from graphweft_workers.cli.options import Json, command
from graphweft_workers.cli.output import show, stderr
from graphweft_workers.cli.rule_test_run import run_cases
from graphweft_workers.reports.report import PlainReport
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.rules import load_rules

_EXAMPLE: Final = """\
tests:
  - name: an order links the customer
    events:
      - {type: order.placed, data: {customer: ann, order: o1}}
    graph:
      - query: MATCH (c:Customer)-[:PLACED]->(o:Order) RETURN c.id, o.id
        rows: [[ann, o1]]"""
_SHOWN_NAMES: Final = 20


@command
async def rule_tests(
    path: Annotated[
        Path | None,
        typer.Argument(
            help="Folder of workflows, folder of one workflow, or test file.", show_default="the folder of rules"
        ),
    ] = None,
    match: Annotated[
        str | None, typer.Option("--match", "-k", help="Only cases with this text in their name or their file's.")
    ] = None,
    json: Json = False,
) -> int | None:
    """Run the tests beside rules: the files *_test.yaml. Exits with 1 if a case fails.

    It starts a server of its own on an empty folder if a case needs a graph, and contacts no other server.
    """
    began = SYSTEM_CLOCK.monotonic()
    settings = Settings.load()
    set_up_command_logs(settings)
    path = path or settings.rules
    if not path.exists():
        raise InvalidSettings(f"{str(path)!r} does not exist: give a folder of rules, or a test file")
    tests = load_tests(path)
    if not tests.files:
        raise InvalidSettings(_how_to_begin(path))
    cases = _selected(tests, match)
    settings = settings.model_copy(update={"rules": tests.root})
    rules = load_rules(settings, only={name for case in cases for name in case.workflows})
    outcomes = await run_cases(settings, rules, cases)
    judged = [(case, failures_of(case, outcome)) for case, outcome in zip(cases, outcomes, strict=True)]
    failed = sum(bool(failures) for _, failures in judged)
    found = [_dict(case, failures) for case, failures in judged]
    lines = [line for case, failures in judged for line in _lines(case, failures)]
    said = [*lines, f"{len(cases) - failed} passed, {failed} failed"]
    show(PlainReport({"passed": len(cases) - failed, "failed": failed, "cases": found}, said), json=json)
    stderr().print(f"{SYSTEM_CLOCK.monotonic() - began:.1f} s", style="dim")
    return 1 if failed else None


def _selected(tests: RuleTests, match: str | None) -> Sequence[Case]:
    """Return the cases to run. Raises ``RulesError`` if a test file has errors."""
    if errors(tests.findings):
        raise RulesError(tests.findings)
    if match is None:
        return tests.cases
    wanted = match.casefold()
    found = [case for case in tests.cases if wanted in case.name.casefold() or wanted in case.place.file.casefold()]
    if not found:
        names = "".join(f"\n  {case.name}" for case in tests.cases[:_SHOWN_NAMES])
        more = len(tests.cases) - _SHOWN_NAMES
        raise InvalidSettings(f"no case matches {match!r}; the cases:{names}" + (f"\n  and {more} more" * (more > 0)))
    return found


def _how_to_begin(path: Path) -> str:
    workflow = path / next(iter(discover(path)), "Workflow") if not (path / FILE_NAME).is_file() else path
    return (
        f"{path} holds no tests: write a file with a name that ends with {TESTS} beside the rules of a workflow, such "
        f"as {workflow / f'orders{TESTS}'}:\n{_EXAMPLE}"
    )


def _lines(case: Case, failures: Sequence[CaseFailure]) -> Iterator[str]:
    yield f"{'FAIL' if failures else 'ok':<4}  {case.place.file}:{case.place.line}  {case.name}"
    for failure in failures:
        yield f"      {failure.place}: {failure.message}"
        yield from (f"        {line}" for line in failure.diff)


def _dict(case: Case, failures: Sequence[CaseFailure]) -> dict[str, Any]:
    return {
        "name": case.name,
        "file": case.place.file,
        "line": case.place.line,
        "column": case.place.column,
        "workflow": case.workflow,
        "passed": not failures,
        "failures": [failure.to_dict() for failure in failures],
    }
