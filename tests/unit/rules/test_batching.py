"""What becomes of queries when their rows share one, written down: ``golden/batch_forms.txt``.

After a change that is meant: ``python tests/unit/rules/test_batching.py``, and read the difference.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from graphweft_rules.cypher.batch_query import ROW, Mode
from graphweft_rules.cypher.clauses import outline
from graphweft_rules.cypher.expressions import uses
from graphweft_rules.cypher.node_labels import shared_labels
from graphweft_rules.cypher.part_parser import read_parts
from graphweft_rules.cypher.parts import PatternError
from graphweft_rules.cypher.query import Cypher, parse
from graphweft_rules.files.lint import explain
from graphweft_rules.files.loader import RuleFiles
from graphweft_workers.drivers import dialects
from graphweft_workers.drivers.falkordb.batch_query import falkordb_batch_query
from graphweft_workers.drivers.falkordb.dialect import FALKORDB
from graphweft_workers.ports.dialect import GraphDialect

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
QUERIES = HERE / "golden" / "queries.yaml"
GOLDEN = HERE / "golden" / "batch_forms.txt"
PARAMS = {"s": "$event.s", "t": "$event.t", "u": "$event.u"}
WORDS = (
    *"()[]{}.,:|=+-<>*$;'`",
    *("MATCH", "OPTIONAL", "MERGE", "CREATE", "SET", "ON", "WITH", "WHERE", "UNWIND", "AS", "FOREACH", "IN", "DELETE"),
    *("DETACH", "REMOVE", "RETURN", "ORDER", "BY", "UNION", "CALL", "CASE", "WHEN", "THEN", "ELSE", "END", "EXISTS"),
    *("COUNT", "IS", "NOT", "NULL", "(a:A", "(b", "[r:R]", "->", "<-", "$p", "{id:", "a.x", "1", "..", "reduce", "any"),
)
RULES = (ROOT / "examples" / "airline" / "workflows", ROOT / "tests" / "fixtures" / "contract")
MODES = ("single", "ordered")


def queries() -> Iterator[tuple[str, Cypher, frozenset[str] | None]]:
    """Yield queries, each with the labels that share nodes: by the query alone, or by its set of rules."""
    for name, text in yaml.safe_load(QUERIES.read_text()).items():
        cypher = parse(text, role="mutation")
        yield name, cypher, shared_labels([cypher])
    files = RuleFiles()
    for root in RULES:
        found: dict[str, Cypher] = {}
        for file in sorted(root.rglob("*.yaml")):
            config = files.resolve(file).config
            for rule in config.mutation_rules if config else ():
                for mutation in rule.mutations:
                    if Path(mutation.place.file) == file:
                        name = f"{file.parent.name}/{rule.name}/{mutation.id}"
                        found[name] = parse(mutation.cypher, role="mutation")
        shared = shared_labels(found.values())
        yield from ((name, cypher, shared) for name, cypher in found.items())


def golden() -> str:
    lines: list[str] = []
    for name, cypher, shared in queries():
        lines += [f"# {name}", " ".join(cypher.statement.split())]
        for dialect in dialects():
            form = cypher.batch_query(dialect, shared)
            lines.append(f"  {dialect.name}: {form.mode}" + (f", keys {', '.join(form.keys)}" if form.keys else ""))
            if form.reason:
                lines.append(f"    because {form.reason}")
            if form.mode != "single":
                lines.append(f"    {' '.join(form.statement.split())}")
        lines.append("")
    return "\n".join(lines)


def test_the_forms_are_those_that_are_written_down() -> None:
    assert golden() == GOLDEN.read_text()


@pytest.mark.parametrize("dialect", dialects())
def test_a_form_has_a_reason_unless_any_rows_may_share_it(dialect: GraphDialect) -> None:
    for name, cypher, shared in queries():
        form = cypher.batch_query(dialect, shared)
        assert bool(form.reason) == (form.mode != "ordered"), name
        assert form.columns == cypher.columns
        if form.mode == "single":
            assert form.statement == cypher.statement
        else:
            assert not [word.text for word in outline(form.statement).words.tokens if word.kind == "param"]


def test_who_knows_more_of_labels_never_gets_less() -> None:
    for name, cypher, shared in queries():
        form, other = cypher.batch_query(FALKORDB, shared), cypher.batch_query(FALKORDB)
        assert MODES.index(form.mode) >= MODES.index(other.mode), name
        assert form.statement == other.statement or form.mode != other.mode, name


SEEN = "MERGE (s:Session {id: $s}) SET s.seen = $t MERGE (u:User {id: $u}) SET u.seen = $t"


@pytest.mark.parametrize(
    ("shared", "mode"),
    [
        (None, "single"),
        (frozenset[str](), "ordered"),
        (frozenset({"Tool"}), "ordered"),
        (frozenset({"User"}), "single"),
        (frozenset({"Session"}), "single"),
    ],
)
def test_nodes_whose_labels_share_no_node_may_have_properties_of_one_name(
    shared: frozenset[str] | None, mode: Mode
) -> None:
    assert FALKORDB.batch_query(outline(SEEN), ["s", "t", "u"], shared=shared).mode == mode


def test_a_rule_that_puts_two_labels_on_one_node_changes_the_forms_of_others(tmp_path: Path) -> None:
    def modes(*texts: str) -> list[Mode]:
        mutations = [{"id": f"m{number}", "cypher": text, "params": PARAMS} for number, text in enumerate(texts)]
        rules = [{"name": "r", "events": ["*"], "mutations": mutations}]
        (tmp_path / "graph_injection.yaml").write_text(yaml.safe_dump({"mutation_rules": rules}))
        return [each.mode for each in explain([tmp_path], dialects()) if each.dialect == "falkordb"]

    assert modes(SEEN) == ["ordered"]
    assert modes(SEEN, "MATCH (s:Session {id: $s}) SET s:User") == ["single", "ordered"]


def test_parameters_become_values_of_the_row_in_the_order_of_columns() -> None:
    form = FALKORDB.batch_query(outline("MERGE (n:A {id: $b}) SET n.x = $ `a`, n.y = '$a'"), ["a", "b"])
    assert f"{{id: {ROW}[2]}}" in form.statement
    assert f"n.x = {ROW}[1]" in form.statement
    assert "n.y = '$a'" in form.statement


def test_a_relationship_that_is_not_used_later_is_not_carried_on() -> None:
    # Carried on, it would make the server tell parallel relationships apart, and a counter would go wrong.
    form = falkordb_batch_query(outline("MATCH (a:A {id: $id})-[r:R]->(b:B) SET b.r = coalesce(b.r, 0) + 1"), ["id"])
    assert f"WITH {ROW}, b ORDER BY {ROW}[0] SET b.r" in form.statement


def test_an_item_does_not_carry_the_row_or_its_list_on() -> None:
    # WITH copies lists: carried on by each of its items, a list would cost the square of its length.
    text = (
        "MATCH (a:A {id: $id}) UNWIND $in.items AS item UNWIND $tags AS tag MERGE (b:B {id: item.id}) "
        "WITH a, b, item, tag AS name MERGE (a)-[r:R]->(b) SET r.name = name, b.text = $text"
    )
    form = falkordb_batch_query(outline(text), ["id", "in", "tags", "text"])
    assert form.mode == "ordered"
    head, made, rest = form.statement.partition(" MATCH ")
    assert "__gw_row[2].items AS __gw_l0" in head
    assert "__gw_row" not in rest
    behind = rest.partition(" MERGE ")[2]
    assert made
    assert [name for name in ("__gw_p0", "__gw_p1", "__gw_p2", "__gw_l0") if name in behind] == []
    assert "WITH __gw_no, __gw_p3, __gw_i0, __gw_i1, a, b, item, tag AS name" in behind
    assert behind.endswith("SET r.name = name, b.text = __gw_p3")


@pytest.mark.parametrize(
    ("expression", "keys"),
    [
        ("$a", ("a",)),
        ("$a.x", ("a.x",)),
        ("item", ("c",)),
        ("item.id", ("c.id",)),
        ("toLower($a) + $b", ("a", "b")),
        ("toString(item.id)", ("c.id",)),
        ("1", ()),
    ],
)
def test_keys_name_the_columns_and_their_fields(expression: str, keys: tuple[str, ...]) -> None:
    form = falkordb_batch_query(outline(f"UNWIND $c AS item MERGE (n:A {{id: {expression}}})"), ["a", "b", "c"])
    assert (form.mode, form.keys) == ("ordered", keys)


@given(st.text() | st.lists(st.sampled_from(WORDS)).map(" ".join))
def test_no_text_makes_it_raise(text: str) -> None:
    for dialect in dialects():
        form = dialect.batch_query(outline(text), ["p"])
        assert form.mode in ("ordered", "single")
    query = outline(text)
    for reading in (lambda: read_parts(query), lambda: uses(query, range(len(query.words.tokens)))):
        with contextlib.suppress(PatternError):
            reading()


def test_explain_names_each_mutation_once_for_each_kind_of_server() -> None:
    explained = explain(RULES, dialects())
    named = {(each.place.file, each.place.line, each.dialect) for each in explained}
    assert len(named) == len(explained)
    assert {each.dialect for each in explained} == {dialect.name for dialect in dialects()}
    assert all(Path(each.place.file).is_file() for each in explained)
    assert {each.mode for each in explained} == {"ordered"}
    assert explained[0].to_dict()["mutation"] == explained[0].mutation


if __name__ == "__main__":
    GOLDEN.write_text(golden())
