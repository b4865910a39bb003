from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import pytest

from graphweft_contracts import Block
from graphweft_rules.formats import Rendered, assemble, render
from graphweft_rules.model import Format


def markdown(columns: list[str], *rows: tuple[Any, ...]) -> str:
    value = render("markdown", "x", columns, rows).value
    assert isinstance(value, str)
    return value


def block(name: str, format: Format, columns: list[str], *rows: tuple[Any, ...]) -> Block:
    rendered = render(format, name, columns, rows)
    return Block(name=name, format=format, value=rendered.value, rows=rendered.rows, rule="r", query="q")


def test_the_contracts_markdown_example_to_the_character() -> None:
    columns = ["p.name", "p.description", "a.success_rate"]
    rows = [("CRM Pattern", "Customer management workflow", 0.92), ("Legal Brief", "Document generation", 0.89)]
    assert assemble([block("successful_patterns", "markdown", columns, *rows)]) == (
        "## Successful Patterns\n"
        "- **CRM Pattern**: Customer management workflow (92% success)\n"
        "- **Legal Brief**: Document generation (89% success)"
    )


def test_the_contracts_format_table() -> None:
    rows = [("A",), ("B",)]
    assert render("list", "x", ["n.name"], rows) == Rendered(value=[{"name": "A"}, {"name": "B"}], rows=2)
    assert render("single", "x", ["n.name"], rows) == Rendered(value={"name": "A"}, rows=1)
    assert render("json", "x", ["name"], [("Ä",)]) == Rendered(value='[\n  {\n    "name": "Ä"\n  }\n]', rows=1)
    assert render("markdown", "x", ["name"], rows) == Rendered(value="- A\n- B", rows=2)


@pytest.mark.parametrize(("format", "empty"), [("list", []), ("single", None), ("json", "[]"), ("markdown", "")])
def test_no_rows(format: Format, empty: Any) -> None:
    assert render(format, "x", ["a"], []) == Rendered(value=empty, rows=0)
    assert assemble([block("x", format, ["a"])]) == ""


def test_max_results_cuts_after_the_order_of_the_query() -> None:
    assert render("list", "x", ["a"], [(3,), (1,), (2,)], 2) == Rendered(value=[{"a": 3}, {"a": 1}], rows=2)


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        (["p.name", "a.rate"], ["name", "rate"]),
        (["p.name", "a.name", "p.x"], ["p.name", "a.name", "x"]),
        (["p.name", "name"], ["p.name", "name"]),
        (["p.`full name`"], ["full name"]),
        (["count(p.name)", "p.a.b", "1.5", "p.x + 1"], ["count(p.name)", "b", "1.5", "p.x + 1"]),
    ],
)
def test_columns_are_called_by_their_last_part_where_that_is_clear(columns: list[str], names: list[str]) -> None:
    value: list[dict[str, Any]] = render("list", "x", columns, [tuple(range(len(columns)))]).value
    assert list(value[0]) == names


def test_every_value_can_be_json() -> None:
    values = (
        (datetime(2026, 2, 1, 10, tzinfo=UTC), "2026-02-01T10:00:00+00:00"),
        (date(2026, 2, 1), "2026-02-01"),
        (time(10, 30), "10:30:00"),
        (timedelta(days=1, hours=2), "P1DT2H"),
        (timedelta(minutes=-90, seconds=-1.5), "-PT1H30M1.5S"),
        (timedelta(), "PT0S"),
        (math.nan, None),
        (-math.inf, None),
        (
            {"a": [math.nan, {"b": date(2026, 2, 1)}], 1: (True, None)},
            {"a": [None, {"b": "2026-02-01"}], "1": [True, None]},
        ),
        (True, True),
        (2**70, 2**70),
    )
    columns = [f"c{number}" for number in range(len(values))]
    rendered = render("single", "x", columns, [tuple(value for value, _ in values)])
    assert list(rendered.value.values()) == [plain for _, plain in values]
    assert json.loads(json.dumps(rendered.value, allow_nan=False)) == rendered.value


@pytest.mark.parametrize(
    ("columns", "row", "line"),
    [
        (["a"], ("A",), "- A"),
        (["a", "b"], ("A", "B"), "- **A**: B"),
        (["a", "b", "n.last_seen", "n.topTag"], ("A", "B", "today", "x"), "- **A**: B (last seen: today, toptag: x)"),
        (["a", "b", "c"], ("A", None, 1), "- **A** (c: 1)"),
        (["a", "b", "c"], (None, "B", 1), "- B (c: 1)"),
        (["a", "b", "c", "d"], (None, None, 1, True), "- c: 1, d: yes"),
        (["a", "b", "c"], ("A", "B", None), "- **A**: B"),
        (["a", "b"], (None, None), ""),
        (["a", "b", "c", "d", "e"], ("A", "B", 0.5, 3.0, False), "- **A**: B (c: 0.5, d: 3, e: no)"),
        (["a"], (1234567.891,), "- 1234567.891"),
        (["a"], (1e300,), "- 1e+300"),
        (["a"], (0.1 + 0.2,), "- 0.3"),
        (["a"], ("two\r\n lines\n\n*here*",), "- two lines *here*"),
        (["a", "b"], ("A", ["x", None, 1.0]), "- **A**: x, 1"),
        (["a"], ({"full_name": "Ada", "tags": ["x", "y"], "none": None},), "- full name: Ada, tags: x, y"),
    ],
)
def test_a_row_is_one_line(columns: list[str], row: tuple[Any, ...], line: str) -> None:
    assert markdown(columns, row) == line


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (0.92, "92% success"),
        (0.285, "29% success"),
        (0.625, "63% success"),
        (1, "100% success"),
        (0, "0% success"),
        (1.5, "success rate: 1.5"),
        (True, "success rate: yes"),
        ("high", "success rate: high"),
    ],
)
def test_rates_are_percentages(value: Any, cell: str) -> None:
    assert markdown(["n", "d", "a.success_rate"], ("N", "D", value)) == f"- **N**: D ({cell})"


def test_blocks_stand_under_their_headings() -> None:
    text = assemble(
        [
            block("user_history", "list", ["w.name", "w.at"], ("Ä", 1), ("B", 2)),
            block("nothing", "markdown", ["a"]),
            block("only_nulls", "markdown", ["a"], (None,)),
            block("profile", "single", ["u.name"], ("Ada",)),
            block("API_docs", "json", ["a"], (1,)),
        ]
    )
    assert text == (
        '## User History\n[{"name": "Ä", "at": 1}, {"name": "B", "at": 2}]\n\n'
        '## Profile\n{"name": "Ada"}\n\n'
        '## API Docs\n[\n  {\n    "a": 1\n  }\n]'
    )
    assert assemble([]) == ""
