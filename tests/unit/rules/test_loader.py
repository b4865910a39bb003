from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from graphweft_contracts.errors import InvalidRules, Permanent
from graphweft_rules.files.findings import Finding, RulesError
from graphweft_rules.files.loader import GraphInjectionLoader, discover
from graphweft_rules.files.model import GraphInjectionConfig, InjectionRule, Place

CONTRACT = Path(__file__).parents[2] / "fixtures" / "contract"

QUERY = "{id: q, cypher: RETURN 1, inject_as: x}"
MUTATION = "{id: m, cypher: 'CREATE (:N)'}"
INJECTION = f"injection_rules:\n- {{name: i, agents: [A], queries: [{QUERY}]}}\n"
MUTATING = f"mutation_rules:\n- {{name: m, events: [x.y], mutations: [{MUTATION}]}}\n"


def write(folder: Path, text: str, name: str = "graph_injection.yaml") -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def load(path: Path) -> GraphInjectionConfig:
    config = GraphInjectionLoader().load(path)
    assert config is not None
    return config


def refused(path: Path) -> list[str]:
    """Return ``file:line:column level code`` of every finding; the file without its folder."""
    with pytest.raises(RulesError) as caught:
        GraphInjectionLoader().load(path)
    return [
        f"{Path(one.place.file).name}:{one.place.line}:{one.place.column} {one.level} {one.code}"
        for one in caught.value.findings
    ]


def refused_in_text(folder: Path, text: str) -> list[str]:
    return [line.removeprefix("graph_injection.yaml:") for line in refused(write(folder, text))]


def assert_refused(folder: Path, marked: str, *codes: str) -> None:
    """Check the errors of a text, in their order; each stands where the text has its ``»`` (which is taken out)."""
    places: list[str] = []
    *before, rest = marked.split("»")
    text = ""
    for part in before:
        text += part
        line = text.split("\n")
        places.append(f"{len(line)}:{len(line[-1]) + 1}")
    wanted = [f"{place} error {code}" for place, code in zip(places, codes, strict=True)]
    assert refused_in_text(folder, text + rest) == wanted


def message(folder: Path, text: str) -> str:
    with pytest.raises(RulesError) as caught:
        GraphInjectionLoader().load(write(folder, text))
    (finding,) = caught.value.findings
    return finding.message


# -- the contract's examples --


def test_the_full_schema_example() -> None:
    config = load(CONTRACT / "FullSchema")
    assert [rule.name for rule in config.injection_rules] == ["common_user_context", "rule_name"]
    assert [rule.name for rule in config.mutation_rules] == ["track_journey", "rule_name"]
    file = CONTRACT / "FullSchema" / "graph_injection.yaml"
    assert config.files == (CONTRACT / "_shared" / "graph_injection_base.yaml", file)
    rule = config.injection_rules[1]
    assert rule.agents == ("AgentA", "AgentB")
    assert rule.condition == "$context.phase == 'planning'"
    (query,) = rule.queries
    assert query.id == "query_id"
    assert query.cypher == "MATCH (n:NodeType {prop: $param})\nRETURN n.field AS result\n"
    assert query.params == {"param": "$context.some_value"}
    assert (query.inject_as, query.format, query.max_results) == ("injection_name", "list", 10)
    assert rule.place == Place(file=str(file), line=11, column=5)
    assert query.place == Place(file=str(file), line=15, column=9)
    mutation_rule = config.mutation_rules[1]
    assert mutation_rule.events == ("agent.turn_complete", "workflow.phase_complete")
    assert mutation_rule.agents == ("AgentA",)
    assert mutation_rule.condition == "$event.success == true"
    assert mutation_rule.mutations[0].params == {"id": "$context.entity_id"}


def test_the_inheritance_example() -> None:
    loader = GraphInjectionLoader()
    config = loader.load(CONTRACT / "AgentGenerator")
    assert config is not None
    assert [rule.name for rule in config.injection_rules] == ["common_user_context", "generator_specific"]
    assert config.injection_rules[0].queries[0].format == "list"
    assert config.injection_rules[1].queries[0].format == "json"
    assert [rule.name for rule in loader.get_injection_rules("BlueprintAgent")] == [
        "common_user_context",
        "generator_specific",
    ]
    assert [rule.name for rule in loader.get_injection_rules("Another")] == ["common_user_context"]
    assert [rule.name for rule in loader.get_mutation_rules("workflow.complete")] == ["track_journey"]


@pytest.mark.parametrize("name", ["InjectionExample", "MutationExample"])
def test_the_short_examples(name: str) -> None:
    config = load(CONTRACT / name)
    assert len(config.injection_rules) + len(config.mutation_rules) == 1


def test_discover_finds_workflows_and_no_shared_bases(tmp_path: Path) -> None:
    assert list(discover(CONTRACT)) == ["AgentGenerator", "FullSchema", "InjectionExample", "MutationExample"]
    assert discover(CONTRACT)["FullSchema"] == CONTRACT / "FullSchema" / "graph_injection.yaml"
    for name in ("_shared", ".hidden", "B", "A"):
        write(tmp_path / name, "")
    (tmp_path / "empty").mkdir()
    write(tmp_path, "")
    assert list(discover(tmp_path)) == ["A", "B"]
    with pytest.raises(RulesError, match="missing-file"):
        discover(tmp_path / "nowhere")


# -- loading --


def test_the_path_is_a_folder_or_a_file(tmp_path: Path) -> None:
    file = write(tmp_path, INJECTION)
    assert load(tmp_path) == load(file)
    assert load(file).files == (file,)


def test_a_folder_without_rules_is_none_and_forgets_the_last_rules(tmp_path: Path) -> None:
    loader = GraphInjectionLoader()
    loader.load(CONTRACT / "AgentGenerator")
    assert loader.load(tmp_path) is None
    assert loader.get_injection_rules("BlueprintAgent") == []


def test_nothing_applies_before_a_load() -> None:
    loader = GraphInjectionLoader()
    assert loader.get_injection_rules("A") == []
    assert loader.get_mutation_rules("agent.turn_complete") == []


def test_a_load_that_fails_keeps_the_last_rules(tmp_path: Path) -> None:
    loader = GraphInjectionLoader()
    loader.load(CONTRACT / "AgentGenerator")
    with pytest.raises(RulesError):
        loader.load(write(tmp_path, "version: 2"))
    assert loader.get_injection_rules("BlueprintAgent") != []


def test_a_folder_that_does_not_exist_has_no_rules(tmp_path: Path) -> None:
    loader = GraphInjectionLoader()
    loader.load(CONTRACT / "AgentGenerator")
    assert loader.load(tmp_path / "Nowhere") is None
    assert loader.get_injection_rules("InterviewAgent") == []


def test_a_path_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    assert refused(tmp_path / "nowhere.yaml") == ["nowhere.yaml:1:1 error missing-file"]


@pytest.mark.parametrize("text", ["", "version: '1.0'", "version: 1.0", "injection_rules: []\nmutation_rules: []"])
def test_a_file_without_rules_is_an_empty_config(tmp_path: Path, text: str) -> None:
    config = load(write(tmp_path, text))
    assert (config.version, config.injection_rules, config.mutation_rules) == ("1.0", (), ())


def test_defaults(tmp_path: Path) -> None:
    config = load(write(tmp_path, INJECTION + MUTATING))
    (query,) = config.injection_rules[0].queries
    assert (query.params, query.format, query.max_results) == ({}, "list", None)
    assert config.injection_rules[0].condition is None
    assert config.mutation_rules[0].agents == ()
    assert config.mutation_rules[0].mutations[0].params == {}


def test_params_keep_any_json_value(tmp_path: Path) -> None:
    text = (
        "mutation_rules:\n- name: m\n  events: [x.y]\n  mutations:\n"
        "  - id: m\n    cypher: 'CREATE (:N {a: $a, b: $b})'\n"
        "    params: {a: [1, 2.5, {k: $context.x}, null, true], b: 2024-05-01}\n"
    )
    params = load(write(tmp_path, text)).mutation_rules[0].mutations[0].params
    assert params == {"a": [1, 2.5, {"k": "$context.x"}, None, True], "b": "2024-05-01"}


# -- which rules apply --


def test_agents_of_injection_rules(tmp_path: Path) -> None:
    rules = "".join(
        f"- {{name: {name}, agents: {agents}, queries: [{QUERY}]}}\n"
        for name, agents in {"every": '["*"]', "a": "[A]", "ab": "[A, B]"}.items()
    )
    loader = GraphInjectionLoader()
    loader.load(write(tmp_path, "injection_rules:\n" + rules))
    assert [rule.name for rule in loader.get_injection_rules("A")] == ["every", "a", "ab"]
    assert [rule.name for rule in loader.get_injection_rules("B")] == ["every", "ab"]
    assert [rule.name for rule in loader.get_injection_rules("a")] == ["every"]


def test_events_and_agents_of_mutation_rules(tmp_path: Path) -> None:
    heads = {
        "exact": "events: [agent.turn_start]",
        "any": 'events: ["*"]',
        "prefix": "events: [agent.*]",
        "deep": "events: [agent.turn.*]",
        "two": "events: [order.paid, agent.turn_start]",
        "mine": "events: [agent.turn_start], agents: [A]",
        "all": 'events: [agent.turn_start], agents: ["*"]',
    }
    rules = "".join(f"- {{name: {name}, {head}, mutations: [{MUTATION}]}}\n" for name, head in heads.items())
    loader = GraphInjectionLoader()
    loader.load(write(tmp_path, "mutation_rules:\n" + rules))

    def names(event: str, agent: str | None = None) -> list[str]:
        return [rule.name for rule in loader.get_mutation_rules(event, agent)]

    assert names("agent.turn_start") == ["exact", "any", "prefix", "two", "mine", "all"]
    assert names("agent.turn_start", "A") == ["exact", "any", "prefix", "two", "mine", "all"]
    assert names("agent.turn_start", "B") == ["exact", "any", "prefix", "two", "all"]
    assert names("agent.turn.x") == ["any", "prefix", "deep"]
    assert names("order.paid") == ["any", "two"]
    assert names("agents.x") == ["any"]


# -- extends --


def injection(name: str, *, agent: str = "A", inject_as: str = "x") -> str:
    return f"- {{name: {name}, agents: [{agent}], queries: [{{id: q, cypher: RETURN 1, inject_as: {inject_as}}}]}}\n"


def names(rules: tuple[InjectionRule, ...]) -> list[str]:
    return [f"{rule.name}/{rule.agents[0]}" for rule in rules]


def test_an_override_is_processed_among_the_childs_rules(tmp_path: Path) -> None:
    write(tmp_path, "injection_rules:\n" + injection("one") + injection("two", agent="B"), "base.yaml")
    child = "extends: base.yaml\ninjection_rules:\n" + injection("new", agent="C") + injection("one", agent="D")
    assert names(load(write(tmp_path, child)).injection_rules) == ["two/B", "new/C", "one/D"]


def test_injection_and_mutation_rules_have_separate_names(tmp_path: Path) -> None:
    write(tmp_path, MUTATING.replace("name: m", "name: same"), "base.yaml")
    config = load(write(tmp_path, "extends: base.yaml\n" + INJECTION.replace("name: i", "name: same")))
    assert len(config.injection_rules) == len(config.mutation_rules) == 1


def test_chains_and_several_parents(tmp_path: Path) -> None:
    write(tmp_path / "_shared" / "deep", "injection_rules:\n" + injection("root", agent="R"), "root.yaml")
    left = "extends: deep/root.yaml\ninjection_rules:\n" + injection("left", agent="L") + injection("both", agent="L")
    write(tmp_path / "_shared", left, "left.yaml")
    write(tmp_path / "_shared", "injection_rules:\n" + injection("both", agent="P"), "right.yaml")
    text = "extends: [../_shared/left.yaml, ../_shared/right.yaml]\ninjection_rules:\n" + injection("child")
    config = load(write(tmp_path / "W", text))
    assert names(config.injection_rules) == ["root/R", "left/L", "both/P", "child/A"]
    shared = tmp_path / "_shared"
    assert config.files == (
        shared / "deep" / "root.yaml",
        shared / "left.yaml",
        shared / "right.yaml",
        tmp_path / "W" / "graph_injection.yaml",
    )


def test_a_base_reached_twice_does_not_undo_an_override(tmp_path: Path) -> None:
    write(tmp_path, "injection_rules:\n" + injection("rule", agent="Base"), "base.yaml")
    write(tmp_path, "extends: base.yaml\ninjection_rules:\n" + injection("rule", agent="Left"), "left.yaml")
    write(tmp_path, "extends: base.yaml\ninjection_rules:\n" + injection("other", agent="Right"), "right.yaml")
    config = load(write(tmp_path, "extends: [left.yaml, right.yaml]"))
    assert names(config.injection_rules) == ["rule/Left", "other/Right"]
    assert len(config.files) == 4


def test_a_circle_is_refused_with_its_way(tmp_path: Path) -> None:
    write(tmp_path, "version: '1.0'\nextends: b.yaml", "a.yaml")
    write(tmp_path, "extends: [c.yaml]", "b.yaml")
    write(tmp_path, "extends: ./sub/../a.yaml", "c.yaml")
    assert refused(tmp_path / "a.yaml") == ["c.yaml:1:10 error extends-cycle"]
    with pytest.raises(RulesError, match=r"a\.yaml -> \S*b\.yaml -> \S*c\.yaml -> \S*a\.yaml is a cycle"):
        GraphInjectionLoader().load(tmp_path / "a.yaml")
    assert refused(write(tmp_path, "extends: self.yaml", "self.yaml")) == ["self.yaml:1:10 error extends-cycle"]


def test_a_base_is_a_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    assert refused(write(tmp_path, "extends: pipe.yaml", "a.yaml")) == ["a.yaml:1:10 error extends-unreadable"]


def test_a_circle_through_links_is_refused(tmp_path: Path) -> None:
    os.symlink(tmp_path, tmp_path / "again")
    assert refused(write(tmp_path, "extends: again/a.yaml", "a.yaml")) == ["a.yaml:1:10 error extends-cycle"]
    os.symlink(tmp_path / "loop.yaml", tmp_path / "loop.yaml")
    assert refused(write(tmp_path, "extends: loop.yaml", "b.yaml")) == ["b.yaml:1:10 error extends-unreadable"]


@pytest.mark.parametrize(
    ("extends", "codes"),
    [
        ("»nowhere.yaml", ["extends-missing"]),
        ("[»nowhere.yaml, »../neither.yaml, »nowhere.yaml]", ["extends-missing"] * 3),
        ("».", ["extends-unreadable"]),
        ('»"a\\0b"', ["extends-unreadable"]),
        ('»""', ["bad-value"]),
        ("»7", ["wrong-type"]),
        ("[»7]", ["wrong-type"]),
        ("»{a: b}", ["wrong-type"]),
    ],
)
def test_parents_that_cannot_be_read(tmp_path: Path, extends: str, codes: list[str]) -> None:
    assert_refused(tmp_path, f"# base\nextends: {extends}", *codes)


def test_a_base_outside_of_the_rules_folder_is_not_read(tmp_path: Path) -> None:
    secret = write(tmp_path, "PASSWORD=hunter2", "outside/secret.yaml")
    root = tmp_path / "rules"
    (root / "W").mkdir(parents=True)
    (root / "W" / "link.yaml").symlink_to(secret)
    (root / "W" / "folder").symlink_to(secret.parent)
    write(root, "PASSWORD=hunter2", ".env")
    write(root, "PASSWORD=hunter2", ".env.txt")
    (root / "W" / "env.yaml").symlink_to(root / ".env.txt")
    for name in (str(secret), "../../outside/secret.yaml", "link.yaml", "folder/secret.yaml", "../.env", "env.yaml"):
        text = message(root / "W", f"extends: {json.dumps(name)}")
        assert "hunter2" not in text
        assert text.startswith(repr(name)), text
        assert refused(root / "W" / "graph_injection.yaml") == ["graph_injection.yaml:1:10 error extends-refused"]


def test_a_base_is_found_from_any_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "_shared", INJECTION, "base.yaml")
    write(tmp_path / "W", "extends: ../_shared/base.yaml")
    for folder, file in (("W", "graph_injection.yaml"), ("_shared", "../W/graph_injection.yaml"), ("", "W")):
        monkeypatch.chdir(tmp_path / folder)
        assert load(Path(file)).injection_rules


def test_the_findings_of_all_files_come_at_once(tmp_path: Path) -> None:
    write(tmp_path, "versoin: '1.0'\nextends: [root.yaml, gone.yaml]", "base.yaml")
    write(tmp_path, "a:\n\tb", "root.yaml")
    assert refused(write(tmp_path, "extends: base.yaml\nversion: 3\nyes: 1")) == [
        "base.yaml:1:1 error unknown-key",
        "base.yaml:2:22 error extends-missing",
        "graph_injection.yaml:2:10 error bad-value",
        "graph_injection.yaml:3:1 error unknown-key",
        "graph_injection.yaml:3:1 error unquoted-key",
        "root.yaml:2:1 error yaml-syntax",
    ]


def test_the_error_holds_everything(tmp_path: Path) -> None:
    file = write(tmp_path, "version: 3\ninjection_rule: []")
    with pytest.raises(InvalidRules) as caught:
        GraphInjectionLoader().load(file)
    assert isinstance(caught.value, Permanent)
    assert str(caught.value).splitlines() == [
        f'{file}:1:10: error bad-value: version 3 is unknown: write version: "1.0"',
        f"{file}:2:1: error unknown-key: a rule file has no key 'injection_rule' (did you mean 'injection_rules'?): "
        "it may have extends, injection_rules, mutation_rules, version",
    ]
    assert isinstance(caught.value, RulesError)
    assert caught.value.findings[0] == Finding(
        level="error",
        code="bad-value",
        message='version 3 is unknown: write version: "1.0"',
        place=Place(file=str(file), line=1, column=10),
    )


# -- the schema --


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("»- a", "wrong-type"),
        ("»text", "wrong-type"),
        ("version: »1", "bad-value"),
        ("version: »'1'", "bad-value"),
        ("version:»", "bad-value"),
        ("version: »[1.0]", "bad-value"),
        ("version: »on", "ambiguous-value"),
        ("injection_rules:»", "wrong-type"),
        ("injection_rules: »{a: b}", "wrong-type"),
        ("mutation_rules: [»a]", "wrong-type"),
        ("mutation_rules: [»yes]", "ambiguous-value"),
        ("»rules: []", "unknown-key"),
    ],
)
def test_the_file(tmp_path: Path, text: str, wanted: str) -> None:
    assert_refused(tmp_path, text, wanted)


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        ("»{agents: [A], queries: [Q]}", "missing-key"),
        ("»{name: i, queries: [Q]}", "missing-key"),
        ("»{name: i, agents: [A]}", "missing-key"),
        ("{name: »'', agents: [A], queries: [Q]}", "bad-value"),
        ("{name: »' ', agents: [A], queries: [Q]}", "bad-value"),
        ("{name: »1, agents: [A], queries: [Q]}", "wrong-type"),
        ("{name: i, agents: »A, queries: [Q]}", "wrong-type"),
        ("{name: i, agents: »[], queries: [Q]}", "empty-list"),
        ("{name: i, agents: [A, »1], queries: [Q]}", "wrong-type"),
        ("{name: i, agents: [»Pattern*], queries: [Q]}", "bad-value"),
        ("{name: i, agents: [A], queries: »[]}", "empty-list"),
        ("{name: i, agents: [A], queries: »Q}", "wrong-type"),
        ("{name: i, agents: [A], »query: [], queries: [Q]}", "unknown-key"),
        ("{name: i, agents: [A], »events: [], queries: [Q]}", "unknown-key"),
        ("{name: i, agents: [A], condition: »'', queries: [Q]}", "bad-value"),
        ("{name: i, agents: [A], condition: »true, queries: [Q]}", "wrong-type"),
        ("{name: i, agents: [A], condition: »$contxt.a == 1, queries: [Q]}", "bad-condition"),
        ("{name: i, agents: [A], condition: '1 == »$nope.a', queries: [Q]}", "bad-condition"),
        ("{name: i, agents: [A], priority: »high, queries: [Q]}", "wrong-type"),
        ("{name: i, agents: [A], priority: »1.5, queries: [Q]}", "wrong-type"),
        ("{name: i, agents: [A], priority: »true, queries: [Q]}", "wrong-type"),
        ("{name: i, agents: [A], priority:»  , queries: [Q]}", "wrong-type"),
        ("{name: i, agents: [A], timeout_ms: »0, queries: [Q]}", "bad-value"),
        ("{name: i, agents: [A], timeout_ms: »-5, queries: [Q]}", "bad-value"),
        ("{name: i, agents: [A], timeout_ms: »'50', queries: [Q]}", "wrong-type"),
        ("{name: i, agents: [A], timeout_ms: »50ms, queries: [Q]}", "wrong-type"),
        ("{name: i, agents: [A], timeout_ms: »[50], queries: [Q]}", "wrong-type"),
        ("{name: i, agents: [A], max_tokens: »0, queries: [Q]}", "bad-value"),
        ("{name: i, agents: [A], max_tokens: »1e3, queries: [Q]}", "ambiguous-value"),
        ("{name: i, agents: [A], max_tokens: »yes, queries: [Q]}", "ambiguous-value"),
        ("{name: i, agents: [A], »max_token: 5, queries: [Q]}", "unknown-key"),
        ("{name: i, agents: [A], »timeout: 5, queries: [Q]}", "unknown-key"),
    ],
)
def test_injection_rules(tmp_path: Path, rule: str, wanted: str) -> None:
    assert_refused(tmp_path, f"injection_rules:\n- {rule.replace('Q', QUERY)}", wanted)


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("»{cypher: RETURN 1, inject_as: x}", "missing-key"),
        ("»{id: q, inject_as: x}", "missing-key"),
        ("»{id: q, cypher: RETURN 1}", "missing-key"),
        ("{id: q, cypher: RETURN 1, inject_as: x, format: »List}", "bad-value"),
        ("{id: q, cypher: RETURN 1, inject_as: x, format: »1}", "wrong-type"),
        ("{id: q, cypher: RETURN 1, inject_as: x, max_results: »0}", "bad-value"),
        ("{id: q, cypher: RETURN 1, inject_as: x, max_results: »true}", "wrong-type"),
        ("{id: q, cypher: RETURN 1, inject_as: x, max_results: »'5'}", "wrong-type"),
        ("{id: q, cypher: RETURN 1, inject_as: x, max_results: »5.0}", "wrong-type"),
        ("{id: q, cypher: RETURN 1, inject_as: x, »max_result: 5}", "unknown-key"),
        ("{id: q, cypher: RETURN 1, inject_as: x, params: »[a]}", "wrong-type"),
        ("{id: q, cypher: RETURN 1, inject_as: x, params:»  }", "wrong-type"),
        ("{id: q, cypher: RETURN »$a + $a, inject_as: x}", "unbound-param"),
        ("{id: q, cypher: RETURN $a, inject_as: x, params: {a: »$workflow.nope}}", "bad-param"),
        ("{id: q, cypher: RETURN $a, inject_as: x, params: {a: »[$contxt.a]}}", "bad-param"),
        ("{id: q, cypher: '»CREATE (:N)', inject_as: x}", "cypher-write-in-injection"),
        ("{id: q, cypher: RETURN 1, inject_as: x}, {id: »q, cypher: RETURN 1, inject_as: y}", "duplicate-id"),
    ],
)
def test_queries(tmp_path: Path, query: str, wanted: str) -> None:
    assert_refused(tmp_path, f"injection_rules:\n- {{name: i, agents: [A], queries: [{query}]}}", wanted)


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        ("»{name: m, mutations: [M]}", "missing-key"),
        ("»{name: m, events: [x.y]}", "missing-key"),
        ("{name: m, events: »[], mutations: [M]}", "empty-list"),
        ("{name: m, events: »x.y, mutations: [M]}", "wrong-type"),
        ("{name: m, events: [»agent], mutations: [M]}", "bad-value"),
        ("{name: m, events: [»Agent.Turn_Start], mutations: [M]}", "bad-value"),
        ("{name: m, events: [»'*.complete'], mutations: [M]}", "bad-value"),
        ("{name: m, events: [»'agent.turn*'], mutations: [M]}", "bad-value"),
        ("{name: m, events: [x.y], agents: »[], mutations: [M]}", "empty-list"),
        ("{name: m, events: [x.y], mutations: »[]}", "empty-list"),
        ("{name: m, events: [x.y], mutations: [M, {id: »m, cypher: 'CREATE (:N)'}]}", "duplicate-id"),
        ("{name: m, events: [x.y], mutations: [{id: m, cypher: 'CREATE »(', params: {}}]}", "cypher-unbalanced"),
        ("{name: m, events: [x.y], mutations: [{id: m, cypher: 'CREATE (:N)', »format: list}]}", "unknown-key"),
    ],
)
def test_mutation_rules(tmp_path: Path, rule: str, wanted: str) -> None:
    assert_refused(tmp_path, f"mutation_rules:\n- {rule.replace('M', MUTATION)}", wanted)


def test_rule_names_are_unique_within_a_kind(tmp_path: Path) -> None:
    rules = injection("a", agent="A") + injection("b", agent="B") + injection("»a", agent="C")
    assert_refused(tmp_path, "injection_rules:\n" + rules, "duplicate-name")


def test_what_a_rule_may_take_of_an_answer(tmp_path: Path) -> None:
    def rule(more: str) -> InjectionRule:
        (rule,) = load(write(tmp_path, INJECTION.replace("name: i", f"name: i{more}"))).injection_rules
        return rule

    assert (rule("").priority, rule("").timeout_ms, rule("").max_tokens) == (0, None, None)
    some = rule(", priority: -3, timeout_ms: 1, max_tokens: 400")
    assert (some.priority, some.timeout_ms, some.max_tokens) == (-3, 1, 400)
    assert rule(", priority: 0").priority == 0


@pytest.mark.parametrize("key", ["priority", "timeout_ms", "max_tokens"])
def test_mutation_rules_take_nothing_of_an_answer(tmp_path: Path, key: str) -> None:
    marked = MUTATING.replace("name: m", f"name: m, »{key}: 5", 1)
    assert_refused(tmp_path, marked, "unknown-key")


def test_problems_inside_a_block_have_the_blocks_lines(tmp_path: Path) -> None:
    text = """\
injection_rules:
  - name: i
    agents: [A]
    condition: "$context.phase == »$contxt.other"
    queries:
      - id: q
        cypher: |

          MATCH (n {id: $id})
          »SET n.x = »$missing // $id, not $missing
          RETURN n
        params:
          id: $context.id
        inject_as: x
"""
    assert_refused(tmp_path, text, "bad-condition", "cypher-write-in-injection", "unbound-param")


def test_params_of_a_text_without_end_are_not_counted(tmp_path: Path) -> None:
    text = MUTATING.replace("'CREATE (:N)'", '"CREATE (:N {a: $»b, c: »\'d, e: $e})", params: {e: 1}').replace(
        "$»", "»$"
    )
    assert_refused(tmp_path, text, "unbound-param", "cypher-unterminated")


def test_messages_name_the_value_and_the_next_step(tmp_path: Path) -> None:
    assert message(tmp_path, "injection_rule: []").startswith(
        "a rule file has no key 'injection_rule' (did you mean 'injection_rules'?)"
    )
    assert "did you mean" not in message(tmp_path, INJECTION.replace("name: i", "name: i, names: i"))
    assert message(tmp_path, INJECTION.replace("[A]", "PatternAgent")) == (
        'agents is \'PatternAgent\': it must be a list, ["AgentA"], or ["*"] for all'
    )
    assert message(tmp_path, INJECTION.replace("name: i", "name: i, max_tokens: 0")) == (
        "max_tokens must be at least 1"
    )
    assert message(tmp_path, INJECTION.replace("name: i", "name: i, timeout_ms: 50ms")) == (
        "timeout_ms is '50ms': it must be a whole number from 1"
    )
    assert "(did you mean 'timeout_ms'?)" in message(tmp_path, INJECTION.replace("name: i", "name: i, timeout: 5"))
    assert "did you mean 'markdown'?" in message(tmp_path, INJECTION.replace("as: x", "as: x, format: markdwon"))
    assert "did you mean 'agent.turn_complete'?" in message(tmp_path, MUTATING.replace("x.y", "Agent.turnComplete"))
    assert "at line 2 already" in message(
        tmp_path, "mutation_rules:\n" + MUTATING.splitlines()[1] + "\n" + MUTATING.splitlines()[1]
    )
    assert "did you mean 'user_id'?" in message(
        tmp_path,
        INJECTION.replace("RETURN 1", "RETURN $user_id + $usr_id").replace("as: x", "as: x, params: {user_id: 1}"),
    )
