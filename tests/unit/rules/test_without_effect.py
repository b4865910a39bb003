"""Parts of rules, and files, that would have no effect: the linter names each."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphweft_rules import lint
from graphweft_rules.files.findings import Finding, errors
from graphweft_rules.files.loader import unread_files
from graphweft_workers.wiring.rules import known_labels

MUTATION = """
version: "1.0"
mutation_rules:
  - name: r
    events: [tool.call_complete]
    mutations:
      - id: m
        cypher: {cypher}
        params: {{id: $event.call_id}}
"""


def file(folder: Path, text: str, name: str = "W/graph_injection.yaml") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def codes(folder: Path, known: tuple[str, ...] = ()) -> list[str]:
    return [each.code for each in lint([folder], known=known)]


def found(folder: Path, code: str) -> list[Finding]:
    return [each for each in lint([folder]) if each.code == code]


SWALLOWED = {
    "folded": ">\n          MERGE (n:F {id: $id})\n          // we have seen it\n          SET n.seen = true",
    "stripped": ">-\n          MERGE (n:F {id: $id}) // why\n          SET n.seen = true",
    "double quotes": '"MERGE (n:F {id: $id}) // why\n          SET n.seen = true"',
    "single quotes": "'MERGE (n:F {id: $id}) // it''s why\n          SET n.seen = true'",
    "a plain text": "MERGE (n:F) // why\n          SET n.seen = $id",
    "the parameter is lost too": ">\n          MERGE (n:F) // why\n          SET n.seen = $id",
    "two comments": ">\n          MERGE (n:F {id: $id}) // one\n          // two",
}
KEPT = {
    "a literal text": "|\n          MERGE (n:F {id: $id})\n          // we have seen it\n          SET n.seen = true",
    "at the end": ">\n          MERGE (n:F {id: $id})\n          SET n.seen = true // it's why",
    "at the end in quotes": "'MERGE (n:F {id: $id})\n          SET n.seen = true // it''s why'",
    "one line": "'MERGE (n:F {id: $id}) // why'",
    "a block comment": ">\n          MERGE (n:F {id: $id}) /* why */\n          SET n.seen = true",
    "an address": ">\n          MERGE (n:F {id: $id})\n          SET n.at = 'https://x.org/y'",
    "line breaks that are written": '"MERGE (n:F {id: $id}) // why\\n SET n.seen = true"',
}


@pytest.mark.parametrize("cypher", SWALLOWED.values(), ids=SWALLOWED)
def test_a_comment_that_yaml_makes_swallow_the_query_is_an_error(tmp_path: Path, cypher: str) -> None:
    file(tmp_path, MUTATION.format(cypher=cypher))
    (finding,) = lint([tmp_path])
    assert (finding.code, finding.level) == ("swallowed-text", "error")
    assert "//" in finding.message
    assert "'|'" in finding.message


@pytest.mark.parametrize("cypher", KEPT.values(), ids=KEPT)
def test_a_comment_that_hides_nothing_is_fine(tmp_path: Path, cypher: str) -> None:
    file(tmp_path, MUTATION.format(cypher=cypher))
    assert not errors(lint([tmp_path]))


def test_a_comment_that_swallows_a_condition_or_a_retrieval_is_an_error(tmp_path: Path) -> None:
    text = """
injection_rules:
  - name: q
    agents: ["*"]
    condition: >
      $context.a == 1 // only these
      && $context.b == 2
    queries:
      - id: s
        search:
          query: $context.q
          index_name: Doc
          retrieval_query: >
            MATCH (node)-[:IN]->(d:Doc) // the folder
            RETURN d.text AS text
        inject_as: x
"""
    file(tmp_path, text)
    assert [each.code for each in errors(lint([tmp_path]))] == ["swallowed-text", "swallowed-text"]


@pytest.mark.parametrize(
    "name",
    [
        *("graph_injection.yml", "Graph_Injection.YAML", "graph-injection.yaml", "graph_injections.yaml"),
        *("graph_injection.json", "graph_injection.yaml.txt"),
    ],
)
def test_a_file_that_is_almost_named_as_one_of_rules_is_named(tmp_path: Path, name: str) -> None:
    file(tmp_path, MUTATION.format(cypher="'MERGE (n:F {id: $id})'"))
    file(tmp_path, "", f"Mine/{name}")
    (finding,) = lint([tmp_path])
    assert (finding.code, Path(finding.place.file).name) == ("unread-file", name)
    assert [each.code for each in unread_files(tmp_path)] == ["unread-file"]


@pytest.mark.parametrize("name", ["graph_injection.yaml", "team/Mine/graph_injection.yaml"])
def test_a_rule_file_at_a_place_that_nobody_reads_is_named(tmp_path: Path, name: str) -> None:
    file(tmp_path, "", name)
    (finding,) = unread_files(tmp_path)
    assert "<Workflow>/graph_injection.yaml" in finding.message


@pytest.mark.parametrize(
    "name", ["_shared/graph_injection.yml", ".git/graph_injection.yml", "W/graph_injection_test.yaml"]
)
def test_files_of_other_uses_are_not_named(tmp_path: Path, name: str) -> None:
    file(tmp_path, MUTATION.format(cypher="'MERGE (n:F {id: $id})'"))
    file(tmp_path, "", name)
    assert list(unread_files(tmp_path)) == []


@pytest.mark.parametrize("text", ["", "# nothing yet\n", 'version: "1.0"\n'])
def test_a_file_without_rules_is_named(tmp_path: Path, text: str) -> None:
    file(tmp_path, text)
    assert codes(tmp_path) == ["no-rules"]


def test_a_file_that_says_that_it_has_no_rules_is_fine(tmp_path: Path) -> None:
    file(tmp_path, "mutation_rules: []\n")
    assert codes(tmp_path) == []


READING = """
injection_rules:
  - name: q
    agents: ["*"]
    queries:
      - {{id: q, cypher: "MATCH (n:{label}) RETURN n", inject_as: x}}
"""


@pytest.mark.parametrize(
    ("label", "near"), [("Oder", "Order"), ("Paied", "Paid"), ("order", "Order"), ("Orders", "Order")]
)
def test_a_label_that_is_read_and_not_written_is_named(tmp_path: Path, label: str, near: str) -> None:
    file(tmp_path, MUTATION.format(cypher="'MERGE (n:Order {id: $id}) SET n:Paid'") + READING.format(label=label))
    (finding,) = lint([tmp_path])
    assert (finding.code, finding.level) == ("unwritten-label", "warning")
    assert label in finding.message
    assert f"did you mean {near!r}" in finding.message


@pytest.mark.parametrize("label", ["Order", "Paid", "Item", "Fact"])
def test_a_label_that_another_workflow_or_a_feature_writes_is_fine(tmp_path: Path, label: str) -> None:
    written = "'MERGE (n:Order {id: $id}) SET n:Paid FOREACH (x IN [1] | CREATE (:Item))'"
    file(tmp_path, MUTATION.format(cypher=written))
    file(tmp_path, READING.format(label=label), "Other/graph_injection.yaml")
    assert codes(tmp_path, known=("Fact",)) == []


def test_a_label_that_looks_like_none_is_one_of_another_program(tmp_path: Path) -> None:
    file(tmp_path, MUTATION.format(cypher="'MERGE (n:Order {id: $id})'") + READING.format(label="Customer"))
    assert codes(tmp_path) == []


@pytest.mark.parametrize(("field", "near"), [("succes", "success"), ("toolname", "tool_name"), ("reslt", "result"),
                                             ("agent_nmae", "agent_name"), ("workflw", "workflow")])  # fmt: skip
def test_a_misspelt_field_of_a_known_event_is_named(tmp_path: Path, field: str, near: str) -> None:
    text = MUTATION.format(cypher="'MERGE (n:F {id: $id})'").replace("$event.call_id", f"$event.{field}")
    file(tmp_path, text)
    (finding,) = lint([tmp_path])
    assert (finding.code, finding.level) == ("unknown-field", "warning")
    assert f"did you mean {near!r}" in finding.message


def test_a_misspelt_field_in_a_condition_is_named(tmp_path: Path) -> None:
    text = MUTATION.format(cypher="'MERGE (n:F {id: $id})'")
    file(tmp_path, text.replace("    mutations:", "    condition: $event.succes == true\n    mutations:"))
    (finding,) = lint([tmp_path])
    assert (finding.code, finding.place.line) == ("unknown-field", 6)


@pytest.mark.parametrize("field", ["success", "tool_name", "id", "userid", "my_own_field", "order"])
def test_fields_that_may_be_there_are_not_named(tmp_path: Path, field: str) -> None:
    text = MUTATION.format(cypher="'MERGE (n:F {id: $id})'").replace("$event.call_id", f"$event.{field}")
    file(tmp_path, text)
    assert codes(tmp_path) == []
    file(tmp_path, text.replace("tool.call_complete", "order.paid").replace(f"$event.{field}", "$event.succes"))
    assert codes(tmp_path) == []


@pytest.mark.parametrize("text", ["$event.id", "$context.user.id", "{{$event.id}}", "${event.id}"])
@pytest.mark.parametrize("quote", ["'", '\\"'])
def test_a_reference_in_quotes_is_named(tmp_path: Path, text: str, quote: str) -> None:
    file(tmp_path, MUTATION.format(cypher=f'"MERGE (n:F {{id: {quote}{text}{quote}, x: $id}})"'))
    (finding,) = lint([tmp_path])
    assert (finding.code, finding.level) == ("quoted-reference", "warning")
    assert "without quotes" in finding.message


COMPARING = """
injection_rules:
  - name: q
    agents: ["*"]
    queries:
      - id: q
        cypher: |
          MATCH (f:Doc) WHERE {0} RETURN f.text AS text
        inject_as: x
"""


@pytest.mark.parametrize(
    "where",
    [
        "f.valid_at <= datetime()", "datetime() >= f.valid_at", "f.valid_at = datetime()",
        "f.valid_at < DateTime() AND f.x = 1", "f.x = 1 OR NOT f.valid_at<>datetime()",
    ],
)  # fmt: skip
def test_a_comparison_of_text_with_a_time_of_others_is_named(tmp_path: Path, where: str) -> None:
    file(tmp_path, COMPARING.format(where))
    (finding,) = lint([tmp_path])
    assert (finding.code, finding.level) == ("text-time", "warning")
    assert "f.valid_at.epochMillis" in finding.message


@pytest.mark.parametrize(
    "where", ["f.valid_at.epochMillis <= timestamp()", "f.seen <= datetime()", "f.at <= datetime()"]
)
def test_a_comparison_with_a_time_that_rules_write_is_fine(tmp_path: Path, where: str) -> None:
    written = "'MERGE (n:Doc {id: $id}) ON CREATE SET n.seen = datetime() CREATE (:X {at: datetime()})'"
    file(tmp_path, MUTATION.format(cypher=written) + COMPARING.format(where))
    assert codes(tmp_path) == []


def test_the_labels_of_features_are_known_whatever_the_settings_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "graphweft.yaml").write_text("no_such_setting: 1\n")
    assert "Memory" in known_labels()
