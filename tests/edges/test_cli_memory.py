"""``graphweft memory`` and the page about memories, as people and scripts use them beside ``graphweft up``."""

from __future__ import annotations

import ast
import gzip
import json
import os
import pty
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from tests.services.commands import inside
from tests.services.environment import clean_environment

from graphweft_contracts.prompt_text import inside as text_of

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/memory.md").read_text("utf-8")
type Done = subprocess.CompletedProcess[str]


def run(arguments: Sequence[str], environment: Mapping[str, str], folder: Path) -> Done:
    """Run a command in this process."""
    done = inside(arguments, environment, folder=folder)
    return subprocess.CompletedProcess(arguments, done.code, done.out, done.err)


class Up:
    """A ``graphweft up`` of its own, and commands in its folder."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        kept = clean_environment()
        self.environment = kept | {"GRAPHWEFT_LOG_LEVEL": "warning", "COLUMNS": "200"} | environment
        self._process = subprocess.Popen(
            self.command("up"),
            cwd=folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert "graphweft is up" in cast("Any", self._process.stdout).readline()

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "graphweft_workers.cli", *arguments]

    def run(self, *arguments: str, stdin: str = "", apart: bool = False) -> Done:
        """Run a command in this process, or in one of its own: with ``apart``, which a running event loop needs."""
        if not stdin and not apart:
            return run(arguments, self.environment, self.folder)
        done = subprocess.run(
            self.command(*arguments),
            cwd=self.folder, env=self.environment, input=stdin, capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr + done.stdout
        return done

    def ok(self, *arguments: str, stdin: str = "", apart: bool = False) -> str:
        done = self.run(*arguments, stdin=stdin, apart=apart)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, *arguments: str, stdin: str = "") -> Any:
        return json.loads(self.ok(*arguments, "--json", stdin=stdin))

    def json_of(self, code: int, *arguments: str) -> Any:
        """Return what a command prints that ends with this code."""
        done = self.run(*arguments, "--json")
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout)

    def texts(self, *arguments: str) -> list[str]:
        return [row["text"] for row in self.json("memory", "list", *arguments)]

    def said(self, text: str) -> str:
        """Return the next line of ``up`` that has the text."""
        for line in cast("Any", self._process.stdout):
            if text in line:
                return str(line)
        raise AssertionError(f"`up` ended and never said {text!r}")

    def stop(self) -> None:
        self._process.terminate()
        self._process.communicate(timeout=120)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    running = Up(tmp_path_factory.mktemp("up"))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def meaning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    running = Up(tmp_path_factory.mktemp("meaning"), GRAPHWEFT_EMBEDDER="hash:256")
    yield running
    running.stop()


# --- what is refused, and what to do -------------------------------------------------------------------------------

NO_SCOPE = "no scope: give at least one of --user, --chat, --agent, --application"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("add", "--app", "a", "text"), NO_SCOPE),
        (("search", "--app", "a", "text"), NO_SCOPE),
        (("list", "--app", "a"), NO_SCOPE),
        (("list", "--app", "a", "--user", ""), NO_SCOPE),
        (("list", "--app", "a", "--user", "u" * 257), "have 1 to 256 characters"),
        (("list", "--app", "a", "--user", "", "--thread", "t"), "have 1 to 256 characters"),
        (("list", "--app", "a b", "--user", "u"), "invalid --app 'a b'"),
        (("list", "--app", "a", "--user", "u", "--any-of", "team"), "invalid --any-of 'team': expected NAME=VALUE"),
        (("search", "--app", "a", "--user", "u", "--any-of", "user= b", "x"), "invalid --any-of 'user= b': user_id"),
        (("list", "--app", "a", "--user", "u", *["--any-of", "user=b"] * 9), "--any-of is given 9 times"),
        (("add", "--app", "a", "--user", "u"), "give either TEXTs or --file"),
        (("add", "--app", "a", "--user", "u", "--file", "f", "x"), "give either TEXTs or --file"),
        (("add", "--app", "a", "--user", "u", "--file", "nowhere"), "nowhere: No such file"),
        (("add", "--app", "a", "--user", "u", "x", "  "), "TEXT 2: text: expected some text"),
        (("add", "--app", "a", "--user", "u", "x"), "no embedded server runs on the data folder"),
        (("search", "--app", "a", "--user", "u", "x"), "no embedded server runs on the data folder"),
        (("list", "--app", "a", "--user", "u"), "no embedded server runs on the data folder"),
        (("profile", "--app", "a", "--user", "u"), "no embedded server runs on the data folder"),
        (("profile", "--app", "a", "--user", ""), NO_SCOPE),
        (("search", "--app", "a", "--user", "u", "--of", "profile", "x"), "no embedded server"),
        (("forget", "--app", "a", "id"), "no embedded server runs on the data folder"),
        (("erase", "--app", "a", "--user", "u", "--yes"), "no embedded server runs on the data folder"),
        (("erase", "--app", "a", "--user", "u"), "erasing cannot be undone"),
        (("erase", "--app", "a", "--user", "", "--yes"), "user_id: String should have at least 1 character"),
        (("erase", "--app", "a", "--user", "u", "--before", "May"), "expected a time with its zone"),
        (("erase", "--app", "a", "--user", "u", "--before", "2026-01-01T00:00:00"), "expected a time with its zone"),
    ],
)
def test_what_cannot_work_is_refused_with_what_to_do(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = run(("memory", *arguments), {"PATH": os.environ["PATH"]}, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_a_file_is_checked_as_a_whole_first(up: Up, tmp_path: Path) -> None:
    file = tmp_path / "said.jsonl"
    good = '{"role": "user", "text": "good"}'
    lines = [
        *(good, "{", "", '{"role": "tool", "text": "secret"}', '{"text": "secret"}', '{"role": "user", "text": " "}'),
        '{"role": "user", "text": "secret", "time": "2026-01-01T00:00:00"}', '{"role": "user", "text": "x", "mood": 1}',
        json.dumps({"role": "user", "text": "\x00" * 200_000}),
    ]  # fmt: skip
    file.write_text("\n".join([*lines, good]))
    done = up.run("memory", "add", "--app", "checked", "--user", "ada", "--file", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    for number, said in (
        (2, "Invalid JSON"), (4, "role: Input should be"), (5, "role: Field required"), (6, "expected some text"),
        (7, "time: .*Input should have timezone"), (8, "unknown field 'mood': a message has role, text"),
        (9, "split it"),
    ):  # fmt: skip
        assert re.search(rf"said\.jsonl:{number}: .*{said}", done.stderr), number
    assert "7 lines are invalid: correct them; nothing was sent" in done.stderr
    assert "secret" not in done.stderr
    assert up.texts("--app", "checked", "--user", "ada") == []
    empty = up.run("memory", "add", "--app", "checked", "--user", "ada", "--file", "-", stdin="\n")
    assert (empty.returncode, empty.stderr) == (2, "error: standard input has no messages\n")


# --- add, list, search, forget, erase ------------------------------------------------------------------------------


def test_what_is_added_is_listed_and_found_within_its_scope(up: Up) -> None:
    ada, both = ("--app", "scopes", "--user", "ada"), ("--app", "scopes", "--user", "ada", "--thread", "t")
    sent = up.json("memory", "add", *ada, "--wait", "I like green tea", "My dog barks")
    assert (sent["remembered"], sent["events"]) == (2, 1)
    assert re.fullmatch(r"\d+:\d+-\d+", sent["position"])
    up.ok("memory", "add", *both, "--wait", "--role", "assistant", "The dog is old")
    up.ok(
        "memory", "add", "--app", "scopes", "--user", "bob", "--agent-id", "g", "--application", "x", "--wait", "A dog"
    )
    assert sorted(up.texts(*ada)) == ["I like green tea", "My dog barks", "The dog is old"]
    assert up.texts(*ada, "--limit", "1") == ["The dog is old"]
    assert up.texts(*both) == ["The dog is old"]
    assert (
        up.texts("--app", "scopes", "--agent-id", "g") == up.texts("--app", "scopes", "--application", "x") == ["A dog"]
    )
    assert up.texts("--app", "scopes", "--user", "ada", "--agent-id", "g") == []
    assert "The dog is old" in up.ok("memory", "list", *both)
    [line] = up.json("memory", "profile", *ada)
    assert (line["text"], line["predicate"], line["object"]) == ("likes green tea", "likes", "green tea")
    assert "likes green tea" in up.ok("memory", "profile", *ada)
    assert up.json("memory", "profile", *ada, "--as-of", "2026-01-01") == []
    done = up.run("memory", "profile", "--app", "scopes", "--user", "bob")
    assert "has claimed nothing of themselves" in done.stderr
    done = up.run("memory", "search", *ada, "--of", "profile", "tea")
    assert "a profile is read as a whole: leave text out" in done.stderr
    assert "likes green tea" in up.ok("memory", "search", *ada, "--of", "profile", "")
    done = up.run("memory", "list", "--app", "empty", "--user", "ada")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "this scope has no memories\n")

    done = up.run("memory", "search", *ada, "--index-type", "fulltext", "Which dogs?", "--after", sent["position"])
    assert done.returncode == 0
    assert text_of(done.stdout.rstrip()).startswith("Today is ")
    assert "\n- user: My dog barks\n" in done.stdout
    assert "\n- assistant: The dog is old\n" in done.stdout
    assert "green" not in done.stdout
    assert "1 block, 2 rows" in done.stderr
    reply = up.json("memory", "search", *both, "--index-type", "fulltext", "dog", "--explain")
    [block] = reply["blocks"]
    assert [row["text"] for row in block["value"]] == ["The dog is old"]
    assert block["explanation"]["found"] == 1
    query = "RETURN node.text + $mark AS text, score ORDER BY score DESC"
    found = up.ok(
        "memory", "search", *both, "--index-type", "fulltext", "dog", "--top-k", "1", "--retrieval-query", query,
        "--param", "mark=!", "--max-tokens", "100",
    )  # fmt: skip
    assert text_of(found.rstrip()).endswith("The dog is old!")
    words = ("memory", "search", *ada, "--index-type", "fulltext", "the tea")
    assert up.json(*words)["blocks"][0]["rows"] == 1
    assert up.json(*words, "--keep-stop-words")["blocks"][0]["rows"] == 2


def test_facts_entities_and_episodes_are_searched(up: Up) -> None:
    content = {
        "entities": [{"type": "Person", "name": "Ann"}, {"type": "Project", "name": "Shop"}],
        "relations": [{"type": "OWNS", "source": "Ann", "target": "Shop", "fact": "Ann owns the shop"}],
    }
    event = {
        "specversion": "1.0", "id": "e1", "source": "/t", "type": "episode.add", "appid": "facts", "chatid": "ada",
        "time": "2026-02-01T10:00:00Z", "data": {"user_id": "ada", "episode_type": "json", "content": content},
    }  # fmt: skip
    up.ok("emit", "-", "--wait", stdin=json.dumps(event))
    ada = ("memory", "search", "--app", "facts", "--user", "ada")
    shown = text_of(up.ok(*ada, "--of", "facts", "Who owns the shop?").rstrip())
    assert shown.endswith("\n- Ann owns the shop (since 2026-02-01)")
    assert [row["type"] for row in up.json(*ada, "--of", "entities", "ann")["blocks"][0]["value"]] == ["Person"]
    assert up.json(*ada, "--of", "episodes", "")["blocks"][0]["rows"] == 1
    [fact] = up.json(*ada, "shop")["blocks"][0]["value"]
    assert (fact["kind"], fact["text"]) == ("fact", "Ann owns the shop")
    assert up.json(*ada, "--of", "memories", "shop")["blocks"][0]["rows"] == 0
    done = up.run(*ada, "--of", "facts", "--index-type", "vector", "x")
    assert done.returncode != 0
    assert "facts have no vectors" in done.stderr


def test_a_search_without_an_embedder_says_what_to_do(up: Up) -> None:
    up.ok("memory", "add", "--app", "none", "--user", "ada", "--wait", "x")
    done = up.run("memory", "search", "--app", "none", "--user", "ada", "--index-type", "vector", "x")
    assert (done.returncode, done.stdout) == (2, "")
    assert "embedder is required when index_type='vector'" in done.stderr
    assert "set GRAPHWEFT_EMBEDDER" in done.stderr
    done = up.run("memory", "search", "--app", "none", "--user", "ada", "--retrieval-query", "CREATE (n)", "x")
    assert done.returncode == 2
    assert "retrieval_query" in done.stderr


def test_a_search_that_finds_nothing_says_what_may_be_wrong(up: Up) -> None:
    up.ok("memory", "add", "--app", "found", "--user", "ada", "--wait", "She likes tea.")
    for app, user, text in (("found", "ada", "zebra"), ("found", "bob", "tea"), ("nowhere", "ada", "")):
        search = ("memory", "search", "--app", app, "--user", user, text)
        done = up.run(*search)
        assert (done.returncode, done.stdout) == (0, ""), search
        assert "nothing was found. `graphweft memory list` shows what this scope holds" in done.stderr, search
        done = up.run(*search, "--json")
        assert (json.loads(done.stdout)["blocks"][0]["value"], done.stderr) == ([], ""), search
    assert "nothing was found" not in up.run("memory", "search", "--app", "found", "--user", "ada", "tea").stderr


def test_a_file_with_ids_may_be_sent_again(up: Up) -> None:
    lines = [
        json.dumps({"role": "user", "text": f"said {n}", "message_id": str(n), "time": f"2026-01-01T00:00:{n:02}Z"})
        for n in range(30)
    ]
    for _ in range(2):
        up.ok("memory", "add", "--app", "again", "--user", "ada", "--wait", "--file", "-", stdin="\n".join(lines))
    assert up.texts("--app", "again", "--user", "ada", "--limit", "100") == [f"said {n}" for n in reversed(range(30))]


def test_large_files_become_several_events(up: Up, tmp_path: Path) -> None:
    file = tmp_path / "said.jsonl"
    texts = ["x" * 300_000, "y" * 300_000, *(str(n) for n in range(1_500))]
    file.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(json.dumps({"role": "user", "text": t}) for t in texts).encode())
    sent = up.json("memory", "add", "--app", "large", "--user", "ada", "--wait", "--file", str(file))
    assert (sent["remembered"], sent["events"]) == (1_502, 3)
    counted = up.json("query", "--app", "large", "MATCH (m:Memory) RETURN count(m) AS n")
    assert counted["rows"] == [{"n": 1_502}]


def test_vectors_are_made_anew_for_another_embedder(up: Up) -> None:
    up.ok("memory", "add", "--app", "anew", "--user", "ada", "--wait", "The train was late.", "I like tea.")
    other = {**up.environment, "GRAPHWEFT_EMBEDDER": "hash:16"}

    def embedded(*more: str) -> Any:
        done = run(["memory", "embed", "--app", "anew", "--wait", "--json", *more], other, up.folder)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert embedded() == {"embedded": 2, "model": "hash:16"}
    counted = "MATCH (m:Memory) RETURN m.embedding_model AS model, m.embedding_size AS size"
    assert up.json("query", "--app", "anew", counted)["rows"] == [{"model": "hash:16", "size": 16}] * 2
    assert embedded() == {"embedded": 0, "model": "hash:16"}
    assert embedded("--again")["embedded"] == 2
    done = run(["memory", "embed", "--app", "anew"], up.environment, up.folder)
    assert (done.returncode, "GRAPHWEFT_EMBEDDER" in done.stderr) == (2, True)


def test_single_memories_are_forgotten_in_whichever_chat_they_are(up: Up) -> None:
    for thread in ("t1", "t2"):
        up.ok(
            "memory", "add", "--app", "forget", "--user", "ada", "--thread", thread, "--wait", f"in {thread}", "stays"
        )
    rows = up.json("memory", "list", "--app", "forget", "--user", "ada")
    ids = [row["id"] for row in rows if row["text"] != "stays"]
    done = up.run("memory", "forget", "--app", "forget", "--wait", *ids, ids[0], "unknown-id", "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout) == {"forgotten": 2, "unknown": ["unknown-id"]}
    assert up.texts("--app", "forget", "--user", "ada") == ["stays", "stays"]
    done = up.run("memory", "forget", "--app", "forget", "unknown-id")
    assert (done.returncode, done.stdout) == (
        2,
        "nothing is forgotten\nunknown: unknown-id; `graphweft memory list` shows the ids\n",
    )


def test_a_memory_is_changed_and_found_by_its_labels(up: Up) -> None:
    labels = ("--tag", "home", "--tag", "old", "--metadata", "source=crm", "--metadata", "n:=1")
    up.ok("memory", "add", "--app", "change", "--user", "ada", "--wait", *labels, "I live in Oslo.")
    up.ok("memory", "add", "--app", "change", "--user", "ada", "--wait", "I like tea.")
    scope = ("--app", "change", "--user", "ada")
    [row] = up.json("memory", "list", *scope, "--tag", "home", "--metadata", "n:=1")
    assert (row["tags"], row["metadata"]) == (["home", "old"], {"source": "crm", "n": 1})
    change = ("memory", "update", "--app", "change", row["id"], "--text", "I live in Bergen.", "--tag", "home", "--pin")
    assert up.json(*change, "--wait")["updated"] is True
    found = up.json("memory", "get", "--app", "change", row["id"])
    assert (found["memory"]["text"], found["memory"]["tags"]) == ("I live in Bergen.", ["home"])
    assert [before["text"] for before in found["before"]] == ["I live in Oslo."]
    shown = up.ok("memory", "search", *scope, "--as-of", row["time"], "live")
    assert "- user: I live in Oslo.\n" in shown  # it had not ended then
    assert up.json("memory", "list", *scope, "--since", "2200-01-01") == []
    end = ("--expires-at", "2999-01-01")
    up.ok("memory", "add", "--app", "change", "--user", "bob", *end, "--wait", "I am in Rome.")
    [trip] = up.json("memory", "list", "--app", "change", "--user", "bob")
    assert trip["expires_at"] == "2999-01-01T00:00:00.000000Z"
    assert "2999-01-01" in up.ok("memory", "list", "--app", "change", "--user", "bob")
    assert "2999-01-01" in up.ok("memory", "get", "--app", "change", trip["id"])
    change_end = ("memory", "update", "--app", "change", trip["id"], "--expires-at")
    up.ok(*change_end, "never", "--wait")
    assert up.json("memory", "get", "--app", "change", trip["id"])["memory"]["expires_at"] is None
    for wrong in (
        (*change_end, "2020-01-01"),
        ("memory", "add", "--app", "a", "--user", "b", "x", *end[:1], "2020-01-01"),
    ):
        done = up.run(*wrong)
        assert (done.returncode, "expires_at is not after the time" in done.stderr) == (2, True), done.stderr
    both = (*scope, "--any-of", "user=bob", "--any-of", "application=team,chat=t")
    assert {row["text"] for row in up.json("memory", "list", *both)} == {
        "I live in Bergen.", "I like tea.", "I am in Rome.",
    }  # fmt: skip
    assert [row["text"] for row in up.json("memory", "list", *both, "--as-of", row["time"])] == ["I live in Oslo."]
    assert "Rome" in up.ok("memory", "search", *both, "--include-ended", "Rome")
    assert "Rome" not in up.ok("memory", "search", *scope, "--include-ended", "Rome")
    up.ok(
        "memory",
        "update",
        "--app",
        "change",
        row["id"],
        "--text",
        "I live in Bergen.",
        "--time",
        "2026-02-01",
        "--wait",
    )
    done = up.run("memory", "list", *scope, "--since", "soon")
    assert (done.returncode, "invalid --since 'soon'" in done.stderr) == (2, True)
    for wrong in ((), (row["id"], "--tag", "home")):
        assert up.run("memory", "forget", *scope, *wrong).returncode == 2
    assert up.json("memory", "forget", *scope, "--tag", "home", "--wait") == {"forgotten": 1, "unknown": []}
    assert up.texts(*scope) == ["I like tea."]
    assert up.run("memory", "get", "--app", "change", row["id"]).returncode == 2


def test_a_user_is_erased_and_what_remains_is_said(up: Up) -> None:
    for user, thread in (("ada", "t1"), ("ada", "t2"), ("bob", "t1")):
        up.ok("memory", "add", "--app", "erase", "--user", user, "--thread", thread, "--wait", f"of {user}")
    early = (
        "memory",
        "erase",
        "--app",
        "erase",
        "--user",
        "ada",
        "--before",
        "2020-01-01T00:00:00Z",
        "--yes",
        "--wait",
    )
    assert up.json(*early)["erased"] is True
    assert len(up.texts("--app", "erase", "--thread", "t1")) == 2
    said = up.ok("memory", "erase", "--app", "erase", "--user", "ada", "--yes", "--wait")
    assert said.startswith("The memories are erased. The event log still holds the texts")
    assert "graphweft dlq list" in said
    assert up.texts("--app", "erase", "--user", "ada") == []
    assert up.texts("--app", "erase", "--user", "bob") == ["of bob"]


@pytest.mark.parametrize(("answer", "left"), [("n", 1), ("y", 0)])
def test_erasing_asks_first(up: Up, answer: str, left: int) -> None:
    app = f"asks-{answer}"
    up.ok("memory", "add", "--app", app, "--user", "ada", "--wait", "x")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        up.command("memory", "erase", "--app", app, "--user", "ada", "--wait"),
        cwd=up.folder, env=up.environment, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.write(ours, f"{answer}\n".encode())
    out, errors = process.communicate(timeout=120)
    os.close(ours)
    os.close(theirs)
    assert "all memories of the user 'ada' in the app" in errors
    assert ("nothing was erased" in errors) == bool(left)
    assert (process.returncode, bool(out)) == ((2, False) if left else (0, True))
    assert len(up.texts("--app", app, "--user", "ada")) == left


def test_with_an_embedder_what_is_added_is_found_by_its_vector(meaning: Up) -> None:
    ada = ("--app", "vectors", "--user", "ada")
    meaning.ok("memory", "add", *ada, "--wait", "I like green tea", "My dog barks", "The train was late")
    until = time.monotonic() + 60
    rows: list[Any] = []
    while len(rows) < 3:  # vectors come from another worker, a moment later
        assert time.monotonic() < until
        rows = meaning.json("memory", "search", *ada, "green tea")["blocks"][0]["value"]
    assert rows[0]["text"] == "I like green tea"
    assert rows[0]["score"] > rows[1]["score"]
    for index_type in ("vector", "hybrid"):
        found = meaning.json("memory", "search", *ada, "dog barks", "--index-type", index_type, "--top-k", "1")
        assert [row["text"] for row in found["blocks"][0]["value"]] == ["My dog barks"]
        assert found["missing"] == []


# --- the page ------------------------------------------------------------------------------------------------------


def test_the_examples_of_the_page_run_as_printed(up: Up) -> None:
    scripts = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL)
    assert [name for name, _ in scripts] == ["memories.py", "records.py", "enriched.py"]
    assert len(scripts) == PAGE.count("```python")
    outputs = []
    for name, script in scripts:
        (up.folder / name).write_text(script)
        done = subprocess.run(
            [sys.executable, name],
            cwd=up.folder, env=up.environment, capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        assert done.stderr == ""
        outputs.append(done.stdout)
    assert f"```text\n{outputs[0]}```" in PAGE
    said = outputs[1].splitlines()
    assert len(said) == 2, said
    shown, forgotten = map(ast.literal_eval, said)
    assert (shown["text"], shown["tags"], shown["pinned"]) == ("I live in Bergen.", ["home"], True)
    assert forgotten == (shown["id"],)
    assert outputs[2] == "2 messages of this user are remembered\n"
    [event] = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    emitted = up.ok("emit", "-", "--wait", stdin=event.replace("acme", "page"))
    assert emitted == "1 event sent\n1 applied, 0 skipped, 0 failed\n"
    assert up.texts("--app", "page", "--user", "ada") == ["I am allergic to nuts."]
    [commands, facts, *_] = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    _, *arguments = shlex.split(facts)
    assert up.ok(*arguments) == ""
    printed = []
    for line in commands.splitlines():
        program, *arguments = shlex.split(line)
        assert program == "graphweft"
        printed.append(up.ok(*arguments))
    added, found, listed, erased = printed
    assert added.startswith("2 messages sent")
    assert text_of(found.rstrip()).endswith("My sister is called Grace.")
    assert "The train to Oslo was late." in listed
    assert erased.startswith("The memories are erased")
    assert up.texts("--app", "acme", "--user", "ada") == []


def test_the_lines_of_the_page_are_those_that_an_agent_reads(up: Up) -> None:
    said = {"role": "user", "text": "I am allergic to nuts.", "time": "2026-02-01T10:00:00Z"}
    up.ok("memory", "add", "--app", "lines", "--user", "ada", "--wait", "--file", "-", stdin=json.dumps(said))
    found = text_of(up.ok("memory", "search", "--app", "lines", "--user", "ada", "nuts").rstrip()) + "\n"
    changing = re.compile(r"(?<=Today is )[^.]+|(?<=, )[^,]+ ago")
    assert f"```text\n{changing.sub('X', found)}```" in changing.sub("X", PAGE), found


@pytest.mark.parametrize("user", ["ada", "bob"])
def test_a_search_goes_by_its_text_and_the_latest_have_no_score(up: Up, user: str) -> None:
    scope = ("--app", "asked", "--user", user)
    up.ok("memory", "add", *scope, "--wait", f"My sister is called Grace, says {user}.", "The train to Oslo was late.")
    found = text_of(up.ok("memory", "search", *scope, "Who is her sister?").rstrip())
    assert found.startswith("Today is ")
    assert found.endswith(f"My sister is called Grace, says {user}.")
    assert "train" not in found
    latest = up.ok("memory", "search", *scope, "")
    assert "\n- user: The train to Oslo was late.\n" in latest
    rows = up.json("memory", "search", *scope, "")["blocks"][0]["value"]
    assert [row["score"] for row in rows] == [None, None]


# --- import --------------------------------------------------------------------------------------------------------


def test_an_import_brings_over_what_it_can_and_lists_the_rest(up: Up, tmp_path: Path) -> None:
    file = tmp_path / "all.jsonl"
    items: list[Any] = [
        {"id": str(n), "memory": f"memory {n}", "user_id": f"other:{n % 2}", "created_at": "2026-01-01T00:00:00"}
        for n in range(600)
    ]
    items[50] = {"id": "50", "memory": "hunter2", "user_id": "a\nb"}
    items[599] |= {"run_id": "chat", "metadata": {"password": "hunter2"}}
    file.write_text("\ufeff" + "".join(f"{json.dumps(item)}\n" for item in items) + "{hunter2\n", "utf-8")
    one = ("import", "mem0", str(file), "--app", "moved")
    tried = up.json_of(2, *one, "--dry-run")
    assert (tried["dry_run"], tried["events"], tried["refused"]) == (True, {"memories": 599}, 2)
    assert [each["place"].removeprefix(f"{tmp_path}/") for each in tried["refused_items"]] == [
        "all.jsonl:51", "all.jsonl:601",
    ]  # fmt: skip
    assert tried["times_without_zone"] == 599
    done = up.run(*one, "--wait")
    assert done.returncode == 2
    assert "sent 599 events (memories: 599), refused 2 items\n" in done.stdout
    assert "599 applied, 0 skipped, 0 failed\n" in done.stdout
    assert "all.jsonl:51: user_id: expected 1 to 256 characters" in done.stderr
    assert "all.jsonl:601: the line is not JSON\n" in done.stderr
    assert "hunter2" not in done.stderr + done.stdout
    digest = up.ok("digest", "--app", "moved")
    again = up.json_of(2, *one, "--wait")
    assert (again["applied"], again["repeated"]) == (0, 599)
    assert up.ok("digest", "--app", "moved") == digest
    assert len(up.texts("--app", "moved", "--user", "other:0", "--limit", "1000")) == 299
    assert up.texts("--app", "moved", "--thread", "chat") == ["memory 599"]
    # The log took all of it a moment ago, whatever the times of the items: an erasure goes by that.
    up.ok(
        "memory", "erase", "--app", "moved", "--user", "other:0", "--yes", "--wait", "--before", "2026-01-02T00:00:00Z"
    )
    assert up.texts("--app", "moved", "--user", "other:0") != []
    up.ok("memory", "erase", "--app", "moved", "--user", "other:0", "--yes", "--wait")
    up.run(*one, "--wait")
    assert up.texts("--app", "moved", "--user", "other:0") == [], "a second import brings nothing back"
    # Another app has a graph of its own.
    assert up.json_of(2, "import", "mem0", str(file), "--app", "moved2", "--wait")["applied"] == 599
    assert up.texts("--app", "moved", "--user", "other:0") == []


def test_an_import_of_a_damaged_file_says_what_was_sent(up: Up, tmp_path: Path) -> None:
    file = tmp_path / "notes.jsonl.gz"
    texts = (f'{{"text": "note {n} {os.urandom(400).hex()}", "user_id": "ada"}}\n' for n in range(2_000))
    whole = gzip.compress("".join(texts).encode())
    file.write_bytes(whole[: len(whole) // 2])
    done = up.run("import", "memories", str(file), "--app", "damaged", "--wait")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(
        r"is damaged or incomplete .*\([\d,]+ events were sent before; it is safe to run again\)", done.stderr
    )
    file.write_bytes(whole)
    counts = up.json("import", "memories", str(file), "--app", "damaged", "--wait")
    assert counts["events"] == {"memories": 2_000}
    assert 0 < counts["applied"] < 2_000
    assert counts["applied"] + counts["repeated"] == 2_000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("mem0", "nowhere.json", "--app", "a"), "no embedded server runs on the data folder"),
        (("mem0", "nowhere.json", "--app", "a", "--dry-run"), "nowhere.json: cannot be read (No such file"),
        (("mem0", "empty.jsonl", "--app", "a", "--dry-run"), "empty.jsonl: it has no items"),
        (("memories", "empty.jsonl", "--app", "a", "--user", " "), "--user has 1 to 256 characters"),
        (("graphiti", "empty.jsonl", "--app", "a b"), "invalid --app 'a b'"),
    ],
)
def test_an_import_that_cannot_work_says_what_to_do(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    done = run(("import", *arguments), {"PATH": os.environ["PATH"]}, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
