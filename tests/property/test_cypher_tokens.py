from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from graphweft_rules.cypher.query import Role, parse
from graphweft_rules.cypher.tokens import tokenize
from graphweft_workers.drivers import dialects

PIECES = st.sampled_from(
    [
        "'",
        '"',
        "`",
        "\\",
        "/*",
        "*/",
        "//",
        "\n",
        ";",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "$",
        ".",
        ",",
        ":",
        "|",
        "=",
        "*",
        "-",
        ">",
        "1",
        "1.5e3",
        "é",
        "__a",
        "a:A",
        "$x",
        "$`q",
        "r`",
        "MATCH",
        "MERGE",
        "CREATE",
        "SET",
        "DELETE",
        "ON",
        "WITH",
        "RETURN",
        "UNWIND",
        "CALL",
        "FOREACH",
        "EXISTS",
        "CASE",
        "AS",
        "datetime()",
        "date",
        ".",
        "transaction",
        "(",
        ")",
        "randomUUID()",
        "INDEX",
        "LOAD",
        "DROP",
    ]
)
TEXTS = st.one_of(
    st.text(max_size=60), st.lists(PIECES, max_size=25).map(" ".join), st.lists(PIECES, max_size=25).map("".join)
)
ROLES = st.sampled_from(["injection", "mutation"])


@given(TEXTS)
def test_tokens_give_the_text_back(text: str) -> None:
    tokens = tokenize(text)
    assert "".join(token.text for token in tokens) == text
    assert all(text.startswith(token.text, token.start) and token.text for token in tokens)


@given(TEXTS, ROLES)
def test_any_text_can_be_parsed(text: str, role: Role) -> None:
    cypher = parse(text, role=role, dialects=dialects())
    lines = text.split("\n")
    for problem in cypher.problems:
        assert 1 <= problem.column <= len(lines[problem.line - 1]) + 1


@given(st.text(st.characters(exclude_characters="'\\"), max_size=20), ROLES)
def test_nothing_inside_a_string_counts(content: str, role: Role) -> None:
    empty = parse("MATCH (n:A {id: $x}) SET n.x = ''", role=role)
    filled = parse(f"MATCH (n:A {{id: $x}}) SET n.x = '{content}'", role=role)
    assert (filled.params, filled.keys, filled.writes, filled.clock) == (
        empty.params,
        empty.keys,
        empty.writes,
        empty.clock,
    )
    assert [problem.code for problem in filled.problems] == [problem.code for problem in empty.problems]
    assert filled.statement == f"MATCH (n:A {{id: $x}}) SET n.x = '{content}'"
