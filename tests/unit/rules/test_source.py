from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphweft_rules.files.model import Place
from graphweft_rules.files.source import parse
from graphweft_rules.files.tree import Items, KeyTable, Scalar, TableEntry, plain

FILE = "w/graph_injection.yaml"


def value_of(text: str) -> Any:
    root, findings = parse(text.encode(), FILE)
    assert findings == ()
    return plain(root)


def found(content: str | bytes) -> list[str]:
    """Return ``line:column code`` of every finding."""
    data = content.encode() if isinstance(content, str) else content
    _, findings = parse(data, FILE)
    assert all(finding.level == "error" and finding.place.file == FILE for finding in findings)
    return [f"{finding.place.line}:{finding.place.column} {finding.code}" for finding in findings]


def message_of(text: str) -> str:
    _, (finding,) = parse(text.encode(), FILE)
    return finding.message


def entry(text: str, *path: str) -> TableEntry:
    node, _ = parse(text.encode(), FILE)
    *outer, last = path
    for key in outer:
        assert isinstance(node, KeyTable)
        node = node.entries[key].value
    assert isinstance(node, KeyTable)
    return node.entries[last]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("text", "text"),
        ("'yes'", "yes"),
        ('"1e3"', "1e3"),
        ("!!str no", "no"),
        ('!!int "12"', 12),
        ("12", 12),
        ("-7", -7),
        ("0x1f", 31),
        ("9223372036854775807", 2**63 - 1),
        ("1.5", 1.5),
        ("-0.5e+3", -500.0),
        (".5", 0.5),
        ("true", True),
        ("FALSE", False),
        ("True", True),
        ("~", None),
        ("null", None),
        ("", None),
        ("2024-05-01", "2024-05-01"),
        ("2024-05-01T10:00:00Z", "2024-05-01T10:00:00Z"),
        ("1.0.3", "1.0.3"),
        ("25:70", "25:70"),
        ("y", "y"),
        ("=", "="),
        ("é 漢", "é 漢"),
        ("[]", []),
        ("{}", {}),
        ("[1, [a, {b: c}]]", [1, ["a", {"b": "c"}]]),
    ],
)
def test_plain_values(text: str, value: Any) -> None:
    got = value_of(f"key: {text}")["key"]
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        *("yes", "no", "on", "off", "Yes", "OFF"),
        *("010", "0b11", "0o17", "-0x1f", "1_000", "12:30", "1:30:15.5", "1e3", "1.0e5", "-.5", "1_0.5"),
        *(".inf", "-.INF", ".nan"),
        *("9223372036854775808", "9" * 5000, "1.0e+999", "0x" + "f" * 40),
    ],
)
def test_values_that_yaml_readers_disagree_on_or_json_cannot_hold_are_refused(text: str) -> None:
    assert found(f"a: 1\nkey: {text}") == ["2:6 ambiguous-value"]
    assert found(f"key: ['{text}']") == []


def test_every_refusal_says_what_to_do() -> None:
    assert message_of("a: on") == (
        "'on' is a boolean to one YAML reader and text to the next: write true or false, or quote it"
    )
    assert "'12:30'" in message_of("a: 12:30")
    assert "quote it" in message_of("a: 12:30")
    assert message_of("on: 1") == "the bare key 'on' is not a string to every YAML reader: quote it, \"on\":"
    assert "spaces, not with tabs" in message_of("a:\n\t- b")
    assert 'needs quotes, "*"' in message_of("agents: [*]")
    assert "line 1" in message_of("a: 1\na: 2")
    assert "'!!binary'" in message_of("a: !!binary aGk=")


@pytest.mark.parametrize(
    "key", ["on", "yes", "No", "OFF", "true", "1", "1.5", "~", "null", "12:30", "010", "''", "2024-05-01"]
)
def test_keys_that_are_no_strings_are_refused(key: str) -> None:
    wanted = [] if key in {"''", "2024-05-01"} else ["2:3 unquoted-key"]
    assert found(f"top:\n  {key}: x") == wanted


def test_keys_that_cannot_be_strings() -> None:
    assert found("? [a, b]\n: c") == ["1:3 unquoted-key"]
    assert found("? {a: b}\n: c\n? on\n: d") == ["1:3 unquoted-key", "3:3 unquoted-key"]
    assert found("!x a: b") == ["1:1 yaml-tag"]


def test_the_value_under_an_unquoted_key_is_still_looked_at() -> None:
    assert found("on:\n  a: yes") == ["1:1 unquoted-key", "2:6 ambiguous-value"]
    assert "on" in plain(parse(b"on: 1", FILE)[0])


def test_repeated_keys_are_refused_and_the_first_stays() -> None:
    root, findings = parse(b"a: 1\nb:\n  c: 1\n  c: 2\na: 3\n'a': 4", FILE)
    assert [f"{one.place}: {one.code}" for one in findings] == [
        f"{FILE}:4:3: repeated-key",
        f"{FILE}:5:1: repeated-key",
        f"{FILE}:6:1: repeated-key",
    ]
    assert plain(root) == {"a": 1, "b": {"c": 1}}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a: !custom b", "1:4 yaml-tag"),
        ("a: !!python/name:os.system b", "1:4 yaml-tag"),
        ("a: !!set {b}", "1:4 yaml-tag"),
        ("a:\n- !!binary aGk=", "2:3 yaml-tag"),
        ("a: !!timestamp 2024-05-01", "1:4 yaml-tag"),
        ("a: !!int b", "1:4 yaml-tag"),
        ("!custom\na: b", "1:1 yaml-tag"),
    ],
)
def test_tags(text: str, wanted: str) -> None:
    assert found(text) == [wanted]


def test_merge_keys_are_refused() -> None:
    assert found("a: &x {b: 1}\nc:\n  <<: *x\n  d: yes") == ["3:3 yaml-merge", "4:6 ambiguous-value"]
    assert found("a: <<") == ["1:4 ambiguous-value"]
    assert value_of("'<<': 1") == {"<<": 1}


def test_aliases_repeat_a_value_with_the_place_of_its_anchor() -> None:
    text = "a: &x [1, two]\nb: *x\n"
    assert value_of(text) == {"a": [1, "two"], "b": [1, "two"]}
    assert entry(text, "b").value.place == Place(file=FILE, line=1, column=4)


def test_recursive_aliases_are_refused() -> None:
    assert found("a: &x\n  b: *x\n  c: on") == ["1:4 yaml-alias", "3:6 ambiguous-value"]
    assert found("a: &x [1, [*x]]") == ["1:4 yaml-alias"]


def test_aliases_that_explode_are_refused() -> None:
    levels = "\n".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 12))
    assert [line.split()[1] for line in found(f"l0: &l0 [x]\n{levels}")] == ["yaml-too-large"]


def test_depth_is_bounded_whether_written_or_reached_by_aliases() -> None:
    assert found("[" * 64 + "]" * 64) == []
    assert found("[" * 65 + "]" * 65) == ["1:65 yaml-too-deep"]
    assert [line.split()[1] for line in found("[" * 1000)] == ["yaml-too-deep"]
    chain = "\n".join(f"l{n}: &l{n} [*l{n - 1}]" for n in range(1, 200))
    assert {line.split()[1] for line in found(f"l0: &l0 [x]\n{chain}")} == {"yaml-too-deep"}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a:\n\t- b", "2:1 yaml-syntax"),
        ("a: [1, 2", "1:9 yaml-syntax"),
        ('a: "b', "1:6 yaml-syntax"),
        ("a: b: c", "1:5 yaml-syntax"),
        ("agents: [*]", "1:10 yaml-syntax"),
        ("a: 1\n b: 2", "2:3 yaml-syntax"),
        ("a: *nowhere", "1:4 yaml-syntax"),
        ("a: @b", "1:4 yaml-syntax"),
        ("a: 1\n--- \nb: 2", "2:1 yaml-documents"),
        ("a: on\n--- \nb: 2", "2:1 yaml-documents;1:4 ambiguous-value"),
        ("a: 1\n---\n[", "2:1 yaml-documents"),
        ("a: b\x07", "1:5 yaml-encoding"),
        ("a: 1\n\nb: \x00", "3:4 yaml-encoding"),
        ('a: "\\ud800"', "1:4 yaml-encoding"),
    ],
)
def test_broken_yaml(text: str, wanted: str) -> None:
    assert ";".join(found(text)) == wanted


def test_bytes_that_are_no_utf8() -> None:
    assert found(b"a: 1\nb: \xc3\xa9\xff") == ["2:5 yaml-encoding"]
    assert found("a: 1".encode("utf-16")) == ["1:1 yaml-encoding"]
    assert found(b"\xef\xbb\xbfa: \xff") == ["1:4 yaml-encoding"]
    assert found("\ufeffa: \x07") == ["1:4 yaml-encoding"]
    assert found(b"\xef\xbb\xbfa: on") == ["1:4 ambiguous-value"]  # a byte order mark is no column


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "\n\n"])
def test_an_empty_file_is_an_empty_mapping(text: str) -> None:
    root, findings = parse(text.encode(), FILE)
    assert root == KeyTable(entries={}, place=Place(file=FILE))
    assert findings == ()


def test_keys_and_values_know_their_places() -> None:
    text = "top:\n  - name: x\n    items: [1,  two]\r\n    last: {k: v}\n"
    root, _ = parse(text.encode(), FILE)
    assert isinstance(root, KeyTable)
    items = root.entries["top"].value
    assert isinstance(items, Items)
    first = items.items[0]
    assert isinstance(first, KeyTable)
    assert str(first.place) == f"{FILE}:2:5"
    assert str(first.entries["items"].key) == f"{FILE}:3:5"
    two = first.entries["items"].value
    assert isinstance(two, Items)
    assert str(two.items[1].place) == f"{FILE}:3:17"
    assert str(first.entries["last"].key) == f"{FILE}:4:5"


@pytest.mark.parametrize(
    ("text", "position", "wanted"),
    [
        ("q: |\n  MATCH (n)\n  RETURN n", (2, 8), "3:10"),
        ("q: |\n\n\n    MATCH (n)\n      RETURN n", (3, 1), "4:5"),
        ("q: |\n\n\n    MATCH (n)\n      RETURN n", (4, 3), "5:7"),
        ("q: |2\n    MATCH (n)\n  RETURN n", (1, 3), "2:5"),
        ("q: |-  # a comment\r\n   MATCH (n)\r\n   RETURN n\r\n", (2, 1), "3:4"),
        ("q: &anchor |\n  MATCH", (1, 2), "2:4"),
        ("q: MATCH (n)", (1, 7), "1:10"),
        ("q: 'MATCH (n)'", (1, 7), "1:11"),
        ('q:\n  "MATCH (n)"', (1, 7), "2:10"),
        ('q: "a \\" b"', (1, 5), "1:4"),
        ("q: 'it''s'", (1, 5), "1:4"),
        ("q: >\n  MATCH (n)\n  RETURN n", (1, 5), "1:4"),
        ("q: MATCH (n)\n  RETURN n", (1, 5), "1:4"),
        ("q: |\n", (1, 1), "1:4"),
    ],
)
def test_a_position_inside_a_string_is_found_in_the_file(text: str, position: tuple[int, int], wanted: str) -> None:
    node = entry(text, "q").value
    assert isinstance(node, Scalar)
    assert str(node.at(*position)) == f"{FILE}:{wanted}"
    offset = sum(len(line) + 1 for line in str(node.value).split("\n")[: position[0] - 1]) + position[1] - 1
    assert node.at_offset(offset) == node.at(*position)


@given(st.text(alphabet=" \t\n:-[]{}#&*!|>'\"%@`,?abon01.~<=_\r\x85\u2028\ud7ff"))
def test_no_text_raises(text: str) -> None:
    root, findings = parse(text.encode(), FILE)
    assert isinstance(plain(root), str | int | float | bool | list | dict | None)
    assert all(one.place.line >= 1 and one.place.column >= 1 for one in findings)


@given(st.binary(max_size=60))
def test_no_bytes_raise(data: bytes) -> None:
    parse(data, FILE)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=4),
        max_leaves=12,
    )
)
def test_what_a_yaml_writer_writes_reads_back_equal(value: Any) -> None:
    import yaml

    got = value_of(yaml.safe_dump({"key": value}))["key"]
    assert got == value or (isinstance(value, float) and math.isclose(got, value))
