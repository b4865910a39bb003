"""The page of ``graphweft diff --html``: one file without scripts and without anything from elsewhere.

Values come from events, so all text is escaped, and the page forbids scripts and requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Final

from graphweft_workers.reports.diff import (
    INDENT,
    DiffReport,
    lines_of_example,
    text_of_cause,
    title_of_example,
    title_of_rule,
)
from graphweft_workers.support.printable import printable

_STYLE: Final = """
:root {
  color-scheme: light dark;
  --line: #d0d7de; --soft: #f6f8fa; --added: #1a7f37; --removed: #b3261e; --changed: #8a5a00;
}
@media (prefers-color-scheme: dark) {
  :root { --line: #3d444d; --soft: #161b22; --added: #57c46f; --removed: #ff8a80; --changed: #e3b341; }
}
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .8rem; text-align: left; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
.added { color: var(--added); } .removed { color: var(--removed); } .changed { color: var(--changed); }
details { border: 1px solid var(--line); border-radius: 6px; margin: .4rem 0; padding: .4rem .8rem; }
summary, pre { font-family: ui-monospace, monospace; font-size: 13px; overflow-wrap: anywhere; }
pre { background: var(--soft); padding: .5rem; white-space: pre-wrap; margin: .4rem 0; }
"""
_HEAD: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
"""
_CLASSES: Final = {"+": "added", "-": "removed", "~": "changed"}


def page_of(report: DiffReport) -> str:
    """Return the page."""
    title = f"What the rules {report.rules[:12]} would have made of {report.app}"
    place = ", ".join(f"{partition}:{offset}" for partition, offset in report.found.ends.items())
    parts = [
        _HEAD,
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{_text(title)}</h1>\n",
        f"<p>{'Nothing differs.' if report.same else 'The graphs differ.'} Place of the log: {_text(place)}.</p>\n",
        *(_section(str(each.title), each.columns, each.rows) for each in report.tables(report.rule_names())),
        _section(
            "Failures by these rules",
            ("mutation", "events", "reason"),
            [(title_of_rule(name), number, message) for (name, message), number in report.found.failures.items()],
        ),
        *_examples(report),
        "</body>\n</html>\n",
    ]
    return "".join(parts)


def _section(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    if not rows:
        return ""
    numbers = [all(isinstance(row[index], int | None) for row in rows) for index in range(len(columns))]
    head = "".join(_cell("th", name, numbers[index]) for index, name in enumerate(columns))
    body = "".join(
        "<tr>" + "".join(_cell("td", value, numbers[index]) for index, value in enumerate(row)) + "</tr>\n"
        for row in rows
    )
    return (
        f'<h2>{_text(title)}</h2>\n<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}</tbody>\n</table></div>\n"
    )


def _cell(tag: str, value: Any, number: bool) -> str:
    text = f"{value:,}" if isinstance(value, int) else str(value or "")
    if text.startswith(INDENT):
        text = "· " + text.removeprefix(INDENT)
    scope = ' scope="col"' if tag == "th" else ""
    return f"<{tag}{scope}{' class="n"' if number else ''}>{_text(text)}</{tag}>"


def _examples(report: DiffReport) -> Iterable[str]:
    graphs = report.found.graphs
    if graphs.examples:
        yield "<h2>Examples</h2>\n"
    for example, causes in zip(graphs.examples, report.found.causes, strict=True):
        lines = "\n".join(
            f'<span class="{_CLASSES[line[0]]}">{_text(line)}</span>' for line in lines_of_example(example)
        )
        events = "\n".join(_text(text_of_cause(cause)) for cause in causes)
        title = _text(f"{example.how}: {title_of_example(example)}")
        yield (
            f'<details open><summary class="{example.how}">{title}</summary>\n'
            + (f"<pre>{lines}</pre>\n" if lines else "")
            + (f"<pre>{events}</pre>\n" if events else "")
            + "</details>\n"
        )


def _text(text: str) -> str:
    """Return text that is nothing but text in a page: escaped, without control characters and half surrogates."""
    return escape(printable(text).encode("utf-8", "replace").decode(), quote=True)
