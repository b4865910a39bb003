"""Compares the outcome of a case with its expectations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from graphweft_contracts import ContextReply
from graphweft_contracts.plurals import counted
from graphweft_rules.files.loader import covers_type
from graphweft_rules.rule_tests.model import Case, ContextCheck, CountCheck, QueryCheck, StatementChecks
from graphweft_rules.rule_tests.outcome import CaseFailure, CaseOutcome, CaseRows, Counts, Trouble
from graphweft_rules.rule_tests.values import aligned, cut, differences, is_same, lines_of, shown

_LEGEND: Final = "(- expected, + got)"


def failures_of(case: Case, outcome: CaseOutcome) -> list[CaseFailure]:
    """Return what does not hold, in the order of the kinds of expectations."""
    found: list[CaseFailure] = []
    if case.statements is not None:
        found += _statements(case.statements, outcome)
    for check, answer in zip(case.graph, outcome.graph, strict=False):
        found += _query(check, answer) if isinstance(check, QueryCheck) else _counts(check, answer)
    for context, reply in zip(case.context, outcome.replies, strict=False):
        found += _context(context, reply)
    found += _troubles(case, outcome)
    for event in outcome.unmatched:
        if not any(covers_type(pattern, event.type) for pattern in case.unmatched):
            message = f"{event.message}; if that is right, add {event.type!r} to `unmatched` of the case"
            found.append(CaseFailure(place=event.place, message=message))
    return found


def _statements(expected: StatementChecks, outcome: CaseOutcome) -> Iterator[CaseFailure]:
    wanted = [check for check in expected.checks if not check.skipped]
    names, ran = [check.name for check in wanted], [each.name for each in outcome.ran]
    if names != ran:
        got = [f"{each.name} {shown(each.params)}" for each in outcome.ran]
        lines = aligned(names, ran)
        # Show parameters beside the mutations that ran.
        texts = iter(got)
        diff = [line if line.startswith("-") else f"{line[:2]}{next(texts)}" for line in lines]
        message = f"other mutations run {_LEGEND}"
        yield CaseFailure(place=expected.place, message=message, diff=cut(diff))
    else:
        for check, each in zip(wanted, outcome.ran, strict=True):
            for name, value in check.params.items():
                if name not in each.params:
                    has = ", ".join(each.params) or "none"
                    message = f"{check.name} has no parameter {name!r}; its parameters: {has}"
                    yield CaseFailure(place=value.place, message=message)
                elif not is_same(value.value, each.params[name]):
                    message = f"the parameter {name!r} of {check.name} has another value {_LEGEND}"
                    yield CaseFailure(place=value.place, message=message, diff=_values(value.value, each.params[name]))
    left = list(outcome.skipped)
    for check in expected.checks:
        if check.skipped:
            found = next((one for one in left if one.name == check.name and check.reason in one.reason), None)
            if found is not None:
                left.remove(found)
                continue
            others = [f"+ {one.name}: {one.reason}" for one in outcome.skipped]
            message = f"{check.name} is not skipped" if check.name not in {one.name for one in left} else (
                f"{check.name} is skipped for another reason"
            )  # fmt: skip
            yield CaseFailure(place=check.place, message=message, diff=cut(others))
    again = {check.name for check in expected.checks if check.skipped} & {one.name for one in left}
    for name in sorted(again):
        times = sum(one.name == name for one in outcome.skipped)
        message = f"{name} is skipped {times} times: list each, or use `dead_letters`"
        yield CaseFailure(place=expected.place, message=message)


def _query(check: QueryCheck, answer: CaseRows | Counts | str) -> Iterator[CaseFailure]:
    if not isinstance(answer, CaseRows):
        yield CaseFailure(place=check.place, message=f"the query fails: {answer}")
        return
    expected = [row.value for row in check.rows]
    got: list[Any] = [list(row) for row in answer.rows]
    if expected and all(isinstance(row, dict) for row in expected):
        got = [dict(zip(answer.columns, row, strict=True)) for row in got]
    missing, surplus = differences(expected, got)
    columns = f"the columns are {', '.join(answer.columns)}" if answer.columns else "the graph is empty"
    if missing or surplus:
        diff = cut([*lines_of("-", missing), *lines_of("+", surplus)])
        absent, others = counted(len(missing), "row is", "rows are"), counted(len(surplus), "is", "are")
        message = f"{absent} missing and {others} not expected {_LEGEND}; {columns}"
        yield CaseFailure(place=check.rows_place, message=message, diff=diff)
    elif check.ordered and not is_same(expected, got):
        diff = cut(aligned([shown(row) for row in expected], [shown(row) for row in got]))
        yield CaseFailure(place=check.rows_place, message=f"the rows come in another order {_LEGEND}", diff=diff)


def _counts(check: CountCheck, answer: CaseRows | Counts | str) -> Iterator[CaseFailure]:
    counts: Mapping[str, int] = answer.by_name if isinstance(answer, Counts) else {}
    for name, expected in check.counts.items():
        number = counts.get(name, 0)
        if number != expected.value:
            what = f"{check.of} {name}".rstrip()
            message = f"the graph has another number of {what} {_LEGEND}"
            yield CaseFailure(place=expected.place, message=message, diff=_values(expected.value, number))


def _context(check: ContextCheck, reply: ContextReply) -> Iterator[CaseFailure]:
    if reply.reason is not None and not reply.missing:
        yield CaseFailure(place=check.place, message=f"the agent gets no context: {reply.reason}: {reply.detail}")
        return
    text = cut([f"+ {line}" for line in reply.text.splitlines()])
    for part in check.contains:
        if part.value not in reply.text:
            yield CaseFailure(place=part.place, message=f"the context lacks {shown(part.value)} (+ got)", diff=text)
    for part in check.excludes:
        if part.value in reply.text:
            yield CaseFailure(place=part.place, message=f"the context contains {shown(part.value)} (+ got)", diff=text)
    if check.equals is not None and check.equals.value.rstrip("\n") != reply.text.rstrip("\n"):
        diff = aligned(check.equals.value.rstrip("\n").split("\n"), reply.text.rstrip("\n").split("\n"))
        yield CaseFailure(place=check.equals.place, message=f"the context differs {_LEGEND}", diff=cut(diff))
    if check.empty is not None and check.empty.value is not (not reply.text):
        message = "the context is not empty (+ got)" if reply.text else "the context is empty"
        yield CaseFailure(place=check.empty.place, message=message, diff=text)
    left = list(reply.missing)
    for expected in check.missing:
        found = next((one for one in left if one.name == expected.name and expected.reason in (None, one.reason)), None)
        if found is not None:
            left.remove(found)
        else:
            others = cut([f"+ {one.name}: {one.reason}: {one.detail}" for one in reply.missing])
            message = f"the block {expected.name!r} is not missing" + (
                f" for the reason {expected.reason}" if expected.reason else ""
            )
            yield CaseFailure(place=expected.place, message=message, diff=others)
    for one in left:
        message = f"the block {one.name!r} is missing: {one.reason}: {one.detail}"
        if "$context." in one.detail:
            message += " (in a test: `context: {NAME: value}`)"
        message += "; if that is right, add it to `missing`"
        yield CaseFailure(place=check.place, message=message)


def _troubles(case: Case, outcome: CaseOutcome) -> Iterator[CaseFailure]:
    checks = case.statements.checks if case.statements is not None else ()
    skips = {check.name for check in checks if check.skipped}
    expected: set[int] = set()
    for check in case.letters:
        found = [
            number
            for number, one in enumerate(outcome.troubles)
            if one.reason == check.reason
            and check.rule in (None, one.rule)
            and check.mutation in (None, one.mutation)
            and check.type in (None, one.type)
            and check.message in one.message
        ]
        expected |= set(found)
        events = sum(outcome.troubles[number].events for number in found)
        if not found:
            others = cut([f"+ {_said(one)}" for one in outcome.troubles])
            yield CaseFailure(place=check.place, message="there is no such dead letter (+ got)", diff=others)
        elif check.events not in (None, events):
            message = f"these dead letters stand for another number of events {_LEGEND}"
            yield CaseFailure(place=check.place, message=message, diff=_values(check.events, events))
    for number, one in enumerate(outcome.troubles):
        if number not in expected and not (one.reason == "skipped" and one.name in skips):
            yield CaseFailure(place=case.place, message=f"{_said(one)}; if that is right, add it to `dead_letters`")


def _said(one: Trouble) -> str:
    where = f" ({one.place})" if one.place else ""
    times = f"{one.events} times " if one.events > 1 else ""
    return f"{one.name}{where}: {times}{one.reason}: {one.message}"


def _values(expected: Any, got: Any) -> tuple[str, ...]:
    return cut([f"- {shown(expected)}", f"+ {shown(got)}"])
