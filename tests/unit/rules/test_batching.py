"""What becomes of queries when their rows share one, written down: ``golden/batch_forms.txt``.

After a change that is meant: ``python tests/unit/rules/test_batching.py``, and read the difference.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from graphweft_rules.batching import ROW, Dialect, Mode, batch_form
from graphweft_rules.clauses import outline
from graphweft_rules.cypher import Cypher, parse
from graphweft_rules.falkordb_form import falkordb_form
from graphweft_rules.footprint import shared_labels
from graphweft_rules.lint import explain
from graphweft_rules.loader import RuleFiles
from graphweft_rules.patterns import PatternError, read_parts, uses

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
MODES = ("single", "disjoint", "ordered")


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
        for dialect in get_args(Dialect):
            form = cypher.form(dialect, shared)
            lines.append(f"  {dialect}: {form.mode}" + (f", keys {', '.join(form.keys)}" if form.keys else ""))
            if form.reason:
                lines.append(f"    because {form.reason}")
            if form.mode != "single":
                lines.append(f"    {' '.join(form.statement.split())}")
        lines.append("")
    return "\n".join(lines)


def test_the_forms_are_those_that_are_written_down() -> None:
    assert golden() == GOLDEN.read_text()


@pytest.mark.parametrize("dialect", get_args(Dialect))
def test_a_form_has_a_reason_unless_any_rows_may_share_it(dialect: Dialect) -> None:
    for name, cypher, shared in queries():
        form = cypher.form(dialect, shared)
        assert bool(form.reason) == (form.mode != "ordered"), name
        assert form.columns == cypher.columns
        if form.mode == "single":
            assert form.statement == cypher.statement
        else:
            assert not [word.text for word in outline(form.statement).words.tokens if word.kind == "param"]


def test_who_knows_more_of_labels_never_gets_less() -> None:
    for name, cypher, shared in queries():
        form, other = cypher.form("falkordb", shared), cypher.form("falkordb")
        assert MODES.index(form.mode) >= MODES.index(other.mode), name
        assert form.statement == other.statement or form.mode != other.mode, name


SEEN = "MERGE (s:Session {id: $s}) SET s.seen = $t MERGE (u:User {id: $u}) SET u.seen = $t"


@pytest.mark.parametrize(
    ("shared", "mode"),
    [
        (None, "disjoint"),
        (frozenset[str](), "ordered"),
        (frozenset({"Tool"}), "ordered"),
        (frozenset({"User"}), "disjoint"),
        (frozenset({"Session"}), "disjoint"),
    ],
)
def test_nodes_whose_labels_share_no_node_may_have_properties_of_one_name(
    shared: frozenset[str] | None, mode: Mode
) -> None:
    assert batch_form(SEEN, ["s", "t", "u"], "falkordb", shared=shared).mode == mode


def test_a_rule_that_puts_two_labels_on_one_node_changes_the_forms_of_others(tmp_path: Path) -> None:
    def modes(*texts: str) -> list[Mode]:
        mutations = [{"id": f"m{number}", "cypher": text, "params": PARAMS} for number, text in enumerate(texts)]
        rules = [{"name": "r", "events": ["*"], "mutations": mutations}]
        (tmp_path / "graph_injection.yaml").write_text(yaml.safe_dump({"mutation_rules": rules}))
        return [each.mode for each in explain([tmp_path]) if each.dialect == "falkordb"]

    assert modes(SEEN) == ["ordered"]
    assert modes(SEEN, "MATCH (s:Session {id: $s}) SET s:User") == ["disjoint", "ordered"]


def test_parameters_become_values_of_the_row_in_the_order_of_columns() -> None:
    form = batch_form("MERGE (n:A {id: $b}) SET n.x = $ `a`, n.y = '$a'", ["a", "b"], "falkordb")
    assert f"{{id: {ROW}[2]}}" in form.statement
    assert f"n.x = {ROW}[1]" in form.statement
    assert "n.y = '$a'" in form.statement


def test_a_relationship_that_is_not_used_later_is_not_carried_on() -> None:
    # Carried on, it would make the server tell parallel relationships apart, and a counter would go wrong.
    form = falkordb_form("MATCH (a:A {id: $id})-[r:R]->(b:B) SET b.r = coalesce(b.r, 0) + 1", ["id"])
    assert f"WITH {ROW}, b ORDER BY {ROW}[0] SET b.r" in form.statement


def test_an_item_does_not_carry_the_row_or_its_list_on() -> None:
    # WITH copies lists: carried on by each of its items, a list would cost the square of its length.
    text = (
        "MATCH (a:A {id: $id}) UNWIND $in.items AS item UNWIND $tags AS tag MERGE (b:B {id: item.id}) "
        "WITH a, b, item, tag AS name MERGE (a)-[r:R]->(b) SET r.name = name, b.text = $text"
    )
    form = falkordb_form(text, ["id", "in", "tags", "text"])
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
    form = falkordb_form(f"UNWIND $c AS item MERGE (n:A {{id: {expression}}})", ["a", "b", "c"])
    assert (form.mode, form.keys) == ("ordered", keys)


@given(st.text() | st.lists(st.sampled_from(WORDS)).map(" ".join))
def test_no_text_makes_it_raise(text: str) -> None:
    for dialect in get_args(Dialect):
        form = batch_form(text, ["p"], dialect)
        assert form.mode in ("ordered", "disjoint", "single")
    query = outline(text)
    for reading in (lambda: read_parts(query), lambda: uses(query, range(len(query.words.tokens)))):
        with contextlib.suppress(PatternError):
            reading()


def test_keys_are_named_inside_foreach_too() -> None:
    form = falkordb_form("FOREACH (x IN $xs | MERGE (n:A {id: x.id}))", ["xs"])
    assert (form.mode, form.keys) == ("disjoint", ("xs.id",))


def test_explain_names_each_mutation_once_for_each_kind_of_server() -> None:
    explained = explain(RULES)
    named = {(each.place.file, each.place.line, each.dialect) for each in explained}
    assert len(named) == len(explained)
    assert {each.dialect for each in explained} == set(get_args(Dialect))
    assert all(Path(each.place.file).is_file() for each in explained)
    assert {each.mode for each in explained} == {"ordered"}
    assert explained[0].to_dict()["mutation"] == explained[0].mutation


if __name__ == "__main__":
    GOLDEN.write_text(golden())
