"""Arguments that a user mistypes: the error says what to give, and no server is asked first."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.services.commands import inside

from graphweft.transports.embedded import embedded_socket

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.upper().startswith("GRAPHWEFT_")}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "gatway"), "(did you mean 'gateway'?)"),
        (("run", "x"), "'x' is not one of mutation, injection, memory, archive, gateway, console, mcp"),
        (("doctor", "--role", "gatway"), "(did you mean 'gateway'?)"),
        (("doctor", "--rights", "tenent"), "(did you mean 'tenant'?)"),
        (("lint", "--order", "chats"), "(did you mean 'chat'?)"),
        (("memory", "add", "x", "--app", "a", "--role", "asistant"), "(did you mean 'assistant'?)"),
        (("key", "new", "--role", "worke"), "(did you mean 'worker'?)"),
        (("order", "a", "chats"), "(did you mean 'chat'?)"),
        (("import", "graphiti", "x.jsonl", "--app", "a", "--group-as", "usr"), "(did you mean 'user'?)"),
        (("erase", "--app", "a", "--wait-s", "nan"), "'nan' is not a number of at least 0"),
        (("export", "--app", "a", "f", "--wait-s", "inf"), "'inf' is not a number of at least 0"),
        (("emit", "f", "--give-up-after", "-1"), "'-1' is not a number of at least 0"),
        (("emit", "f", "--give-up-after", "soon"), "'soon' is not a number of at least 0"),
        (("doctor", "--role", "any", "--max-age", "0"), "'0' is not a number of at least 0.1"),
        (("coverage", "f", "--fail-under", "nan"), "'nan' is not a number from 0 to 100"),
        (("mcp", "--app", "a"), "it is a role. Did you mean `graphweft run mcp`?"),
        (("mutation",), "it is a role. Did you mean `graphweft run mutation`?"),
        (("rules", "diff", ""), "error: OTHER is empty: give the hash of a rule set, or a folder of workflows"),
    ],
)
def test_the_error_says_what_to_give(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = inside(arguments, ENVIRONMENT, folder=tmp_path)
    assert (done.code, said in done.err) == (2, True), done.err


@pytest.mark.parametrize(
    ("arguments", "type", "said"),
    [
        (("rules", "diff", "", "--json"), "InvalidSettings", "OTHER is empty"),
        (("query", "--app", "a", "RETURN 1", "--json"), "NotRunning", "no embedded server runs"),
        (("emit", "nothing.jsonl", "--json"), "InvalidEvent", "nothing.jsonl: No such file"),
        (("query", "--json", "--app", "a b", "RETURN 1"), "InvalidSettings", "invalid --app 'a b'"),
        (("query", "--json", "--app", "a"), "Error", "Missing argument"),
        (("status", "--json", "--nothing"), "Error", "No such option"),
        (("emit", "f", "--json", "--give-up-after", "soon"), "Error", "'soon' is not a number"),
        (("stauts", "--json"), "Error", "No such command"),
    ],
)
def test_with_json_an_error_is_one_json_object_on_standard_error(
    tmp_path: Path, arguments: tuple[str, ...], type: str, said: str
) -> None:
    plain = inside([each for each in arguments if each != "--json"], ENVIRONMENT, folder=tmp_path)
    done = inside(arguments, ENVIRONMENT, folder=tmp_path)
    [line] = done.err.splitlines()
    found = json.loads(line)
    assert said in found.pop("error")
    assert found == {"type": type, "exit_code": plain.code}
    assert (done.code, done.out) == (plain.code, "")
    assert plain.err.count("error: ") <= 1, "a command without --json still says it in words"


def test_behind_two_dashes_json_is_no_option(tmp_path: Path) -> None:
    done = inside(("query", "--app", "a", "--", "--json"), ENVIRONMENT, folder=tmp_path)
    assert (done.code, done.err[:7]) == (2, "error: ")


def test_a_server_that_runs_in_a_folder_below_is_named(tmp_path: Path) -> None:
    (data := tmp_path / "shop/.graphweft").mkdir(parents=True)
    embedded_socket(data).touch()
    done = inside(("query", "--app", "a", "RETURN 1"), ENVIRONMENT, folder=tmp_path)
    assert (done.code, "One may run in the folder 'shop': change to it" in done.err) == (2, True), done.err


def test_the_rules_of_a_wrong_folder_are_a_missing_folder(tmp_path: Path) -> None:
    done = inside(("lint",), ENVIRONMENT, folder=tmp_path)
    assert "the folder 'workflows' does not exist: correct the path, or change to the folder of the project" in done.out


def test_a_folder_in_place_of_the_log_of_the_demo_is_named(tmp_path: Path) -> None:
    (log := tmp_path / "data/services.log").mkdir(parents=True)
    example = str(ROOT / "examples/airline")
    done = inside(("demo", "--data", str(tmp_path / "data"), "--example", example), ENVIRONMENT, folder=tmp_path)
    assert done.code == 2
    assert f"the services cannot write their log to '{log}': Is a directory: move that away" in done.err
    assert not (tmp_path / "data/lock").exists()
