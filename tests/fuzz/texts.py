"""Random conditions and queries: deep, long or wide, up to twice as large as the limits of texts."""

# ruff: noqa: E501 - words in rows

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from graphweft_rules.text_limits import CONDITION, QUERY, RETRIEVAL, TextLimits

_VALUES: Final = ("1", "0", "-1", "2.5", "'a'", "''", "true", "null", "[]", "[1, 2]", "[[1], [2]]", "'' + 'b'")
_CEL_ATOMS: Final = (
    *_VALUES,
    *("$event.a", "$event.list", "$event.map.x", "$context.user_id", "size($event.list)", "{}", "{'k': 1}", "r'\\d'"),
    *("has($event.a)", "int('1')", "string(1)", "b'a'", "1u", "'''x'''", "$event.text", "x", "y0", "timestamp('2026-01-01T00:00:00Z')"),
)  # fmt: skip
_CEL_OPERATORS: Final = (
    " + ",
    " - ",
    " * ",
    " / ",
    " % ",
    " == ",
    " != ",
    " < ",
    " <= ",
    " && ",
    " || ",
    " in ",
    " ? 1 : ",
)
_CEL_AROUND: Final = (
    *(
        ("(", ")"),
        ("[", "]"),
        ("{'a': ", "}"),
        ("size(", ")"),
        ("!(", ")"),
        ("-(", ")"),
        ("string(", ")"),
        ("[1][", "]"),
    ),
    *(("true ? ", " : 1"), ("[1].all(x, ", ")"), ("[1, 2].map(y0, ", ")"), ("$event.list.exists(x, ", ")")),
    *(("$event.list.filter(x, ", ")"), ("(1 + ", ")"), ("'a'.matches(", ")"), ("has(", ")")),
)
_CEL_BEHIND: Final = (
    ".a",
    "[0]",
    ".size()",
    ".map(x, x)",
    ".filter(x, true)",
    "['k']",
    ".contains('a')",
    ".all(x, true)",
)
_CEL_BEFORE: Final = ("!", "-", "- ", "! ", "(", "[", "'", '"', "// ", "\n", "\u2028", "é", "$", "`", "r'''")

_ATOMS: Final = (
    *_VALUES,
    *("n", "n.id", "n.text", "m.id", "$a", "$p", "x", "n:N", "labels(n)", "count(n)", "toString(1)", "keys(n)", "{}"),
    *("{a: 1}", "exists(n.id)", "(n)-[]->()", "[x IN [1] | x]", "range(0, 3)", "size([1])", "`n`", "/* ( */ 1", "'(['"),
)  # fmt: skip
_OPERATORS: Final = (
    *(" + ", " - ", " * ", " / ", " % ", "^", " = ", " <> ", " < ", " AND ", " OR ", " XOR ", " IN ", " STARTS WITH "),
    *(" CONTAINS ", " =~ ", " IS NULL OR ", "+", "-", ", "),
)
_AROUND: Final = (
    *(("(", ")"), ("[", "]"), ("{a: ", "}"), ("NOT (", ")"), ("NOT ", ""), ("-(", ")"), ("-", ""), ("+ (", ")"), ("abs(", ")")),
    *(("coalesce(1, ", ", 2)"), ("CASE WHEN ", " THEN 1 ELSE 2 END"), ("CASE 1 WHEN (", ") THEN 1 END"), ("1 + (", ")")),
    *(("[x IN [1] | ", "]"), ("[x IN ", " | 1]"), ("any(x IN [1] WHERE ", ")"), ("reduce(s = 0, x IN [1] | ", ")")),
    *(("[1, 2][", "]"), ("[1, 2][0..(", ")]"), ("n {x: ", "}"), ("true AND (", ")"), ("(1 < ", ")"), ("toString(", ")")),
    *(("[(n)-[]->(m) | ", "]"), ("NOT NOT (", ")"), ("exists(", ")"), ("count(DISTINCT ", ")"), ("all(x IN [", "] WHERE true)")),
)  # fmt: skip
_BEHIND: Final = (".a", "[0]", ":N", " IS NULL", " IS NOT NULL", "[0..1]", "['k']")
_BEFORE: Final = ("NOT ", "-", "+", "- ", "(", "[", "{", "'", '"', "`", "/*", "// ", "\n", "$", "é", ";")
_CLAUSES: Final = (
    *("MATCH (n:N)", "MATCH (n:N {id: 1})", "OPTIONAL MATCH (n:N)-[:R]->(m:N)", "WITH n", "WITH *", "WITH n, 1 AS x", "WHERE n.id = 1"),
    *("UNWIND [1, 2] AS x", "UNWIND range(1, 3) AS x", "UNWIND range(1, 1000000000) AS x", "RETURN n", "UNION RETURN 1 AS n"),
    *("CALL { MATCH (m:N) RETURN m }", "MERGE (n:Z {id: 1})", "CREATE (:Z)", "SET n.x = 1", "DELETE n", "REMOVE n.x", "LIMIT 1"),
    *("FOREACH (x IN [1] | CREATE (:Z))", "ORDER BY n.id", "MATCH (n:N)-[*1..3]->(m:N)", "ON CREATE SET n.x = 1"),
)  # fmt: skip
_WIDE: Final = (
    *(":L{i}", "(a{i})", "(a{i}:N {id: 1})", "()-->()", "-->()", "-[:R{i}]->(b{i})", "a{i}: 1", "1 AS c{i}", "n.p{i} = 1", "|R{i}"),
    *("UNWIND [1] AS a{i}", "MATCH (a{i}:N)", "MERGE (a{i}:Z {id: 1})", "$p{i}", "'x{i}'", "n.p{i}", "WITH 1 AS a{i}"),
)  # fmt: skip


class Texts:
    """A source of texts that a seed repeats."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def condition(self) -> str:
        """Return a condition."""
        return self._text(CONDITION, _CEL_ATOMS, _CEL_OPERATORS, _CEL_AROUND, _CEL_BEHIND, _CEL_BEFORE)

    def query(self) -> str:
        """Return a query of a rule."""
        return self._query(QUERY)

    def retrieval_query(self) -> str:
        """Return a query of a request."""
        return self._query(RETRIEVAL)

    def _query(self, limits: TextLimits) -> str:
        text = self._text(limits, _ATOMS, _OPERATORS, _AROUND, _BEHIND, _BEFORE)
        match self._random.randrange(8):
            case 0:
                count = self._count(2 * limits.clauses)
                return " ".join(self._random.choice(_CLAUSES) for _ in range(count)) + " RETURN 1 AS text, 1 AS score"
            case 1:
                item, sep = self._random.choice(_WIDE), self._random.choice((", ", " ", ""))
                items = sep.join(item.replace("{i}", str(number)) for number in range(self._count(2 * limits.items)))
                head = self._random.choice(
                    ("MATCH ", "MATCH (n", "MATCH ()", "RETURN ", "MATCH (n) SET ", "RETURN {", "")
                )
                tail = self._random.choice((" RETURN 1", ") RETURN 1", "}", ""))
                return f"{head}{items}{tail}"
            case 2:
                return f"MATCH (n:N) WHERE {text} RETURN n.text AS text, 1 AS score LIMIT 1"
            case 3:
                return f"MATCH (n:N {{id: {text}}}) RETURN n.text AS text, 1 AS score"
            case 4:
                return f"MATCH (n:N) WITH n, {text} AS y WITH y + y AS y RETURN y AS text, 1 AS score"
            case 5:
                return f"MERGE (n:N {{id: 1}}) MERGE (m:N {{id: 2}}) SET n.x = {text}"
            case _:
                return f"MATCH (n:N), (m:N {{id: 2}}) RETURN {text} AS text, 1 AS score"

    def _text(
        self,
        limits: TextLimits,
        atoms: Sequence[str],
        operators: Sequence[str],
        around: Sequence[tuple[str, str]],
        behind: Sequence[str],
        before: Sequence[str],
    ) -> str:
        choose = self._random.choice
        match self._random.randrange(7):
            case 0:  # deep
                pair = choose(around)
                depth = self._count(2 * limits.nesting)
                return pair[0] * depth + choose(atoms) + pair[1] * depth
            case 1:  # deep, mixed
                pairs = [choose(around) for _ in range(self._count(2 * limits.nesting))]
                return "".join(head for head, _ in pairs) + choose(atoms) + "".join(tail for _, tail in reversed(pairs))
            case 2:  # long
                atom, operator = choose(atoms), choose(operators)
                return operator.join([atom] * self._count(2 * limits.chain))
            case 3:
                return choose(atoms) + choose(behind) * self._count(2 * limits.chain)
            case 4:
                return choose(before) * self._count(2 * limits.chain) + choose(atoms)
            case 5:  # wide
                return (
                    "[" + ", ".join([self._expression(2, atoms, operators, around)] * self._count(limits.items)) + "]"
                )
            case _:
                return self._expression(self._random.randrange(3, 9), atoms, operators, around)

    def _expression(
        self, levels: int, atoms: Sequence[str], operators: Sequence[str], around: Sequence[tuple[str, str]]
    ) -> str:
        choose = self._random.choice
        if levels == 0 or self._random.random() < 0.1:
            return choose(atoms)
        if self._random.random() < 0.5:
            head, tail = choose(around)
            return head + self._expression(levels - 1, atoms, operators, around) + tail
        parts = [self._expression(levels - 1, atoms, operators, around) for _ in range(self._random.randrange(1, 4))]
        return choose(operators).join(parts)

    def _count(self, most: int) -> int:
        """Return a number up to ``most``, small ones as often as large ones."""
        return max(1, int(most ** self._random.random()))
