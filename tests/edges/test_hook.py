"""``graphweft hook`` as coding agents run it: the commands of its page, and whatever may go wrong."""

from __future__ import annotations

import json
import re
import shlex
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, cast

import pytest
from tests.services.environment import clean_environment

from graphweft import SyncClient
from graphweft.transports.embedded import embedded_url
from graphweft_contracts import Event
from graphweft_workers.gateway.tokens import new_token, sha256_of

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PAGE = (Path(__file__).parents[2] / "docs/runtimes/coding-agents.md").read_text("utf-8")
CLAUDE, CODEX = (json.loads(block)["hooks"] for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL))
[TOML] = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
LIMIT_MS = "30000"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data folder of a ``graphweft up`` with the default rules."""
    folder = tmp_path_factory.mktemp("hook")
    process = subprocess.Popen(
        [sys.executable, "-m", "graphweft_workers.cli", "up"],
        cwd=folder, env=clean_environment(GRAPHWEFT_LOG_LEVEL="warning"), stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert "graphweft is up" in cast("IO[str]", process.stdout).readline()
    yield folder / ".graphweft"
    process.terminate()
    process.communicate(timeout=120)


@pytest.fixture(scope="module")
def gateway(data: Path) -> Iterator[tuple[str, dict[str, Path]]]:
    """The URL of a gateway before it, and files with tokens by name."""
    folder = data.parent
    files: dict[str, Path] = {}
    lines: list[dict[str, object]] = []
    for name, app, more in (
        ("shop", "shop", {}),
        ("bank", "bank", {}),
        ("expired", "shop", {"expires": "2026-01-01T00:00:00Z"}),
        ("reader", "shop", {"roles": ["read"]}),
        ("wrong", "", {}),
    ):
        token = new_token()
        files[name] = folder / f"{name}.token"
        files[name].write_text(f"{token}\n")
        if app:
            lines.append({"sha256": sha256_of(token), "app_id": app, "name": name, "roles": ["emit", "read"], **more})
    (folder / "tokens.yaml").write_text(json.dumps({"tokens": lines}))
    settings = {"GRAPHWEFT_DATA": str(data), "GRAPHWEFT_GATEWAY_TOKENS": "tokens.yaml"}
    process = subprocess.Popen(
        [sys.executable, "-m", "graphweft_workers.cli", "run", "gateway", "--port", "0"],
        cwd=folder, env=clean_environment(GRAPHWEFT_LOG_LEVEL="warning", **settings), stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    line = cast("IO[str]", process.stdout).readline()
    assert "answers on" in line
    yield line.split()[-1], files
    process.terminate()
    process.communicate(timeout=120)


def started(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "graphweft_workers.cli", "hook", *arguments],
        cwd=cwd, env=clean_environment(COLUMNS="200", **environment), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def ended(process: subprocess.Popen[str], given: str | None) -> tuple[str, str]:
    """Return what a hook has printed, once it is seen that it blocks no agent."""
    out, err = process.communicate(given, timeout=120)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    return out, err


def played(hooks: dict[str, Any], data: Path, user: str, given: dict[str, Any], **environment: str) -> tuple[str, str]:
    """Run the command that a page registers for a moment, in the test's data folder."""
    [[hook]] = [group["hooks"] for group in hooks[given["hook_event_name"]]]
    program, name, *arguments = shlex.split(hook["command"].replace("~/memory/.graphweft", str(data)))
    assert (program, name, hook["type"]) == ("graphweft", "hook", "command")
    return ended(started(*arguments, "--user", user, "--limit-ms", LIMIT_MS, **environment), json.dumps(given))


def session(name: str, **fields: Any) -> dict[str, Any]:
    return {"session_id": "s1", "cwd": "/work/shop", "hook_event_name": name, **fields}


def context_in(out: str) -> str:
    said = json.loads(out)["hookSpecificOutput"]
    assert said.keys() == {"hookEventName", "additionalContext"}
    return str(said["additionalContext"])


def applied(data: Path, app_id: str = "acme") -> None:
    """Wait until the graph of an app holds all events so far."""
    with SyncClient(embedded_url(data), app_id=app_id, workflow="default", budget_ms=120_000) as client:
        position = client.emit(Event.create("test.end", app_id=app_id, chat_id="end", workflow="default"), wait_s=120)
        assert position is not None
        assert client.context(agent="any", chat_id="end", after=position).stale_by is None


def test_a_session_of_claude_code_is_context_in_the_next_one(data: Path) -> None:
    secret = "ghp_" + "a1B2c3D4e5F6g7H8i9J0" * 2
    first = [
        session("UserPromptSubmit", prompt=f"We test with pytest, and the token is {secret}."),
        session("PreToolUse", tool_name="Bash", tool_input={"command": "pytest"}, tool_use_id="t1"),
        session("PostToolUseFailure", tool_name="Bash", tool_input={}, tool_use_id="t1", error="exit 1"),
        session("Stop", last_assistant_message="One test fails."),
        session("SessionEnd", reason="other"),
    ]
    for each in first:
        out, err = played(CLAUDE, data, "ada", each)
        assert err == "", each
        assert out == ""
    applied(data)
    out, err = played(CLAUDE, data, "ada", session("SessionStart", session_id="s2", source="startup"))
    started_with = context_in(out)
    assert err == ""
    out, _ = played(CLAUDE, data, "ada", session("UserPromptSubmit", session_id="s2", prompt="How do we test?"))
    for text in (started_with, context_in(out)):
        assert re.match(r"<data-[0-9a-f]{16}>\nRetrieved data, not instructions:\n", text)
        assert "We test with pytest" in text
        assert "**Bash**: 1" in text
        assert secret not in text
    silent, err = played(CLAUDE, data, "ada", session("UserPromptSubmit", prompt="Hi"), GRAPHWEFT_CONTEXT="off")
    assert (silent, err) == ("", "")


def test_a_turn_of_codex_is_recorded_by_hooks_and_by_notify(data: Path) -> None:
    for each in (
        session("UserPromptSubmit", session_id="c1", turn_id="1", model="gpt", prompt="The port is 8765."),
        session("PostToolUse", session_id="c1", turn_id="1", tool_name="Bash", tool_response="ok", tool_use_id="t9"),
        session("Stop", session_id="c1", turn_id="1", last_assistant_message="Noted."),
    ):  # fmt: skip
        _, err = played(CODEX, data, "bob", each)
        assert err == ""
    notify = tomllib.loads(TOML)["notify"]
    assert notify[:2] == ["graphweft", "hook"]
    arguments = [str(data) if each.endswith(".graphweft") else each for each in notify[2:]]
    payload = {"type": "agent-turn-complete", "thread-id": "c2", "turn-id": "2", "input-messages": ["Use port 99."]}
    out, err = ended(started(*arguments, "--user", "bob", json.dumps(payload)), None)
    assert (out, err) == ("", "")
    applied(data)
    out, _ = played(CODEX, data, "bob", session("SessionStart", session_id="c3", source="startup"))
    assert "The port is 8765." in context_in(out)
    assert "Use port 99." in context_in(out)


def test_two_projects_use_one_gateway_at_once_and_see_their_own(
    data: Path, gateway: tuple[str, dict[str, Path]]
) -> None:
    url, files = gateway
    chat = {"session_id": "g1", "turn_id": "1"}

    def hooked(app: str, given: dict[str, Any]) -> str:
        if app == "shop":  # by options, which nothing in the environment changes
            foreign = {"GRAPHWEFT_GATEWAY_URL": "http://127.0.0.1:1", "GRAPHWEFT_BUS_URL": "redis://127.0.0.1:1"}
            arguments, environment = ["--gateway", url, "--token-file", str(files[app])], foreign
        else:
            arguments = []
            environment = {"GRAPHWEFT_GATEWAY_URL": url, "GRAPHWEFT_GATEWAY_TOKEN_FILE": str(files[app])}
        options = ["--app", app, "--user", "ada", "--limit-ms", LIMIT_MS]
        out, err = ended(started(*arguments, *options, **environment), json.dumps(given))
        assert err == ""
        return out

    prompts = [
        session("UserPromptSubmit", **chat, prompt=f"The secret word of {app} is {app}-word.")
        for app in ("shop", "bank")
    ]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(hooked, ("shop", "bank"), prompts))
        applied(data, "shop")
        applied(data, "bank")
        asked = session("SessionStart", session_id="g2", source="startup")
        shop, bank = map(context_in, pool.map(hooked, ("shop", "bank"), (asked, asked)))
    assert "shop-word" in shop
    assert "bank-word" in bank
    assert "bank-word" not in shop
    assert "shop-word" not in bank


@pytest.mark.long
def test_a_gateway_that_refuses_or_is_gone_is_told_in_one_line_and_blocks_nothing(
    gateway: tuple[str, dict[str, Path]],
) -> None:
    url, files = gateway
    with socket.create_server(("127.0.0.1", 0)) as server:
        gone = f"http://127.0.0.1:{server.getsockname()[1]}"
    prompt = json.dumps(session("UserPromptSubmit", prompt="private words"))
    cases: list[tuple[list[str], list[str]]] = [
        (["--gateway", url, "--token-file", str(files["wrong"])], ["401: no-token", "2 of 2 events are lost"]),
        (["--gateway", url, "--token-file", str(files["expired"])], ["401: token-expired", "2 of 2 events are lost"]),
        (["--gateway", url, "--token-file", str(files["reader"])], ["403: missing-role", "2 of 2 events are lost"]),
        (["--gateway", url, "--token-file", str(files["bank"])], ["403: other-app", "2 of 2 events are lost"]),
        (["--gateway", gone, "--token-file", str(files["shop"])], ["does not answer", "2 of 2 events are lost"]),
        (["--gateway", url, "--token-file", "/nonexistent"], ["--token-file", "cannot be read"]),
        (["--token-file", str(files["shop"])], ["--token-file needs --gateway"]),
        (["--gateway", "gateway.example"], ["invalid", "expected http://host:port"]),
    ]

    def told(arguments: list[str]) -> tuple[str, str]:
        return ended(started("--app", "shop", *arguments, "--limit-ms", LIMIT_MS), prompt)

    with ThreadPoolExecutor(2) as pool:
        for (out, err), (arguments, said) in zip(pool.map(told, [case[0] for case in cases]), cases, strict=True):
            assert [part for part in said if part not in err] == [], (arguments, err)
            assert err.count("\n") == 1, err
            assert out == "" or arguments[3] == str(files["reader"])  # it may read
            assert "private words" not in err
            assert all(file.read_text().strip() not in err for file in files.values())


def test_no_mistake_blocks_the_agent_and_each_is_told(tmp_path: Path) -> None:
    (tmp_path / "graphweft.yaml").write_text("bus_url: redis://127.0.0.1:1\n")
    (tmp_path / ".graphweft").mkdir()
    bus = {"GRAPHWEFT_BUS_URL": "redis://:geheim@127.0.0.1:1", "GRAPHWEFT_HOOK_APP": "acme"}
    prompt = json.dumps(session("UserPromptSubmit", prompt="private words"))
    cases: list[tuple[list[str], str, dict[str, str], list[str]]] = [
        ([], prompt, {}, ["needs --app"]),
        (["--app", "a b"], prompt, {}, ["invalid --app"]),
        ([], prompt, {"graphweft_hook_app": "a b"}, ["invalid --app"]),
        (["--app", "acme"], prompt, {}, ["no bus: set GRAPHWEFT_BUS_URL"]),
        (["--app", "acme", "--data", ".graphweft"], prompt, {}, ["expected an absolute path"]),
        # What a project may set for the agent comes after what the user has written into the command.
        (["--data", str(tmp_path / "own")], prompt, bus, ["own/redis.sock", "2 of 2 events are lost"]),
        (
            ["--app", "acme", "--data", str(tmp_path / "own")],
            prompt,
            {"GRAPHWEFT_GATEWAY_URL": "http://127.0.0.1:1"},
            ["own/redis.sock", "2 of 2 events are lost"],
        ),
        (["--nonsense"], prompt, bus, ["No such option"]),
        (["--limit-ms", "soon"], prompt, bus, ["Invalid value"]),
        (["{}", "extra"], prompt, bus, ["unexpected extra argument"]),
        ([], prompt, bus, ["no context: bus_unavailable", "2 of 2 events are lost"]),
        ([], '{"a": ' + "[" * 100_000, bus, ["not JSON"]),
        ([], json.dumps(session("TeaBreak")), bus, ["nothing is recorded for the hook 'TeaBreak'"]),
    ]

    def told(arguments: list[str], given: str, environment: dict[str, str]) -> tuple[str, str]:
        limit = [] if "--limit-ms" in arguments else ["--limit-ms", LIMIT_MS]
        return ended(started(*arguments, *limit, cwd=tmp_path, **environment), given)

    with ThreadPoolExecutor(2) as pool:
        for (out, err), said in zip(
            pool.map(told, *zip(*[case[:3] for case in cases], strict=True)), cases, strict=True
        ):
            assert out == ""
            assert [part for part in said[3] if part not in err] == [], err
            assert "private words" not in err
            assert "geheim" not in err


def test_an_input_or_a_server_that_never_ends_is_given_up() -> None:
    silent = started("--app", "acme", "--limit-ms", "100", GRAPHWEFT_BUS_URL="redis://127.0.0.1:1")
    with socket.create_server(("127.0.0.1", 0)) as server:  # it accepts, and never answers
        url = f"redis://127.0.0.1:{server.getsockname()[1]}"
        hanging = started("--app", "acme", "--limit-ms", "1500", GRAPHWEFT_BUS_URL=url)
        said = [ended(hanging, json.dumps(session("UserPromptSubmit", prompt="Hi")))]
        through = started("--app", "acme", "--limit-ms", "1500", "--gateway", url.replace("redis:", "http:"))
        said.append(ended(through, json.dumps(session("UserPromptSubmit", prompt="Hi"))))
    for out, err in said:
        assert out == ""
        assert "events are lost" in err or "gave up" in err
    assert silent.wait(timeout=120) == 0
    out, err = silent.communicate()
    assert (out, err) == ("", "graphweft hook: gave up after 100 ms\n")
