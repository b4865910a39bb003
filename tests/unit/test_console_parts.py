"""The pure parts of the console: who may look, what is shown, what is drawn, and the files of the page."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import unquote

import httpx
import pytest

from graphweft_contracts import Layout
from graphweft_contracts.layout import ALL_APPS
from graphweft_contracts.rules_log import Activation
from graphweft_workers.console.access import Viewer, check_host, check_origin, check_viewer
from graphweft_workers.console.app import LIMITS
from graphweft_workers.console.assets import Assets
from graphweft_workers.console.history import _replay_turn
from graphweft_workers.console.operation import operation
from graphweft_workers.console.rules import TryQuestion, try_event
from graphweft_workers.engine.failures.dead_letter_counts import DeadLetterCause
from graphweft_workers.engine.usage.app_use import AppUse
from graphweft_workers.gateway import protocol
from graphweft_workers.gateway.limits import RequestLimiter
from graphweft_workers.gateway.problems import Problem
from graphweft_workers.gateway.tokens import AccessToken, Role
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.partitions import PartitionStatus
from graphweft_workers.processes.console import TOKEN_FILE, ConsoleProcess
from graphweft_workers.processes.http_server import HttpServer, bound, server_config
from graphweft_workers.reports.drawing import as_html, as_mermaid, layout
from graphweft_workers.reports.picture import MOST, Picture
from graphweft_workers.reports.scan import ScanLimits, newest_first
from graphweft_workers.reports.values import CHARS, DEPTH, ITEMS, TEXT, VALUES, shown
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.app_uses import AppUses
from graphweft_workers.wiring.archive_state import ArchiveState
from graphweft_workers.wiring.status import ServiceStatus

LIBRARY = {
    "vendor/cytoscape-3.34.4.min.mjs": "0d7e373a706f0f01d6fb7a6ccf04988c01307cee1c2f9bcc7b068e9f6b431e3f",
    "vendor/cytoscape-LICENSE.txt": "eb319c6e6f233607f71e8e2f450391751883cfc0eeb3ca7ef574c13d1d9c2203",
}
"""The files of the package cytoscape 3.34.4 of the npm registry: dist/cytoscape.esm.min.mjs and LICENSE."""
HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script>\"'&"


def viewer(*roles: Role, app: str = "mine", workflows: frozenset[str] | None = None, may_write: bool = False) -> Viewer:
    token = AccessToken(app_id=app, name="t", sha256=b"", roles=frozenset(roles), workflows=workflows)
    return Viewer(token=token, may_write=may_write, may_use=lambda app_id, workflow: workflow != "Forbidden")


def code(error: pytest.ExceptionInfo[Problem]) -> tuple[int, str]:
    return error.value.status, error.value.code


# --------------------------------------------------------------------------------------------------------- who may look


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8766", "127.0.0.1", "127.0.0.1:1", "10.1.2.3:80", "[::1]:8766", "[fe80::1]", "ui.test"],
)
def test_a_request_that_names_this_machine_is_answered(host: str) -> None:
    check_host(host, {"ui.test"})


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "localhost.evil.example", "evil.localhost", "127.0.0.1.evil.example", "localhost@evil", "a b",
     "[::1", "localhost:999999", "ui.test.evil"],
)  # fmt: skip
def test_a_request_for_another_name_is_refused(host: str) -> None:
    with pytest.raises(Problem) as error:
        check_host(host, {"ui.test"})
    assert code(error) == (421, "other-host")


@pytest.mark.parametrize(
    ("origin", "site"),
    [("http://evil.example", None), ("null", None), (None, "cross-site"), ("http://localhost:1", "same-site")],
)
def test_a_request_from_a_page_of_another_site_is_refused(origin: str | None, site: str | None) -> None:
    with pytest.raises(Problem) as error:
        check_origin(origin, site, "localhost:8766")
    assert code(error) == (403, "other-site")


def test_a_request_of_the_page_itself_and_of_a_program_is_answered() -> None:
    check_origin("http://localhost:8766", "same-origin", "localhost:8766")
    check_origin(None, "none", "localhost:8766")
    check_origin(None, None, "localhost:8766")


def test_rules_of_a_workflow_that_a_token_may_not_use_are_in_no_cause() -> None:
    found = operation(status(), Layout(), "mine", all_apps=False, uses=lambda app_id, workflow: workflow != "Secret")
    assert [row["workflow"] for row in found["without_effect"]] == [None]
    assert found["causes_partly"], "there are nine dead letters, and those of three causes were read"


def test_a_token_needs_the_role_read_or_operator() -> None:
    for roles in (("read",), ("admin",), ("operator",)):
        check_viewer(viewer(*roles).token)  # type: ignore[arg-type]
    with pytest.raises(Problem) as error:
        check_viewer(viewer("emit", "erase").token)
    assert code(error) == (403, "missing-role")


@pytest.mark.parametrize("roles", [("read",), ("admin",)])
def test_a_token_of_an_app_sees_this_app_only(roles: tuple[Role, ...]) -> None:
    who = viewer(*roles)
    assert (who.app(None), who.app("mine"), who.apps(None), who.apps("mine")) == ("mine",) * 4
    for ask in (who.app, who.apps):
        with pytest.raises(Problem) as error:
            ask("other")
        assert code(error) == (403, "other-app")


def test_an_operator_sees_every_app_and_chooses_one_where_a_page_shows_one() -> None:
    who = viewer("operator")
    assert (who.apps(None), who.apps("any"), who.app("any")) == (None, "any", "any")
    with pytest.raises(Problem) as error:
        who.app(None)
    assert code(error) == (422, "no-app")


def test_rules_of_workflows_that_a_token_may_not_use_are_hidden() -> None:
    assert [viewer("read").uses("mine", name) for name in ("Any", "Forbidden")] == [True, False]
    assert [viewer("read", workflows=frozenset({"One"})).uses("mine", name) for name in ("One", "Two")] == [True, False]
    assert viewer("operator").uses("mine", "Forbidden")


def test_nothing_is_written_without_the_right() -> None:
    viewer("admin", may_write=True).require_write()
    with pytest.raises(Problem) as error:
        viewer("admin").require_write()
    assert code(error) == (403, "read-only")


# -------------------------------------------------------------------------------------------------------- what is shown


def test_secrets_are_replaced_also_where_a_text_is_cut() -> None:
    secret = "sk_live_" + "4eC39HqLyjWDarjtT1zdp7dc"
    assert secret not in str(shown({"note": f"the key is {secret}", "deep": [{"password": "correct horse 9"}]}))
    assert "correct" not in str(shown({"deep": [{"password": "correct horse 9"}]}))
    cut = shown("x " * (TEXT // 2 - 5) + secret)
    assert "sk_live_" not in cut
    assert shown({"note": secret}, redacts=False) == {"note": secret}


def test_values_are_bounded_and_say_so() -> None:
    assert shown("a" * (TEXT + 1), redacts=False) == "a" * TEXT + f"… ({TEXT + 1:,} characters)"
    assert shown(list(range(ITEMS + 5))) == [*range(ITEMS), "… 5 more"]
    assert shown({str(n): n for n in range(ITEMS + 5)})["…"] == "5 more"
    deep: Any = 1
    for _ in range(DEPTH + 5):
        deep = [deep]
    assert "…" in str(shown(deep))


def leaves(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(leaves, value.values()))
    return 1 + sum(map(leaves, value)) if isinstance(value, list) else 1


def test_the_values_and_characters_of_one_value_are_bounded_together() -> None:
    wide: Any = {f"k{n}": [{f"m{m}": list(range(50)) for m in range(50)} for _ in range(50)] for n in range(50)}
    assert leaves(shown(wide)) <= 2 * VALUES
    assert leaves(shown(wide, values=30)) <= 60
    assert "…" in str(shown(wide, values=30))
    long = [["y" * TEXT] * ITEMS] * ITEMS
    assert len(str(shown(long, redacts=False))) < 2 * CHARS
    assert shown(10**5_000) == "a number of 16,610 bits"


def test_values_that_json_or_javascript_lack_become_text() -> None:
    assert shown([2**53, -(2**53), float("inf"), float("nan"), True, None, 1.5]) == [
        str(2**53), str(-(2**53)), "inf", "nan", True, None, 1.5,
    ]  # fmt: skip
    assert shown("\ud800", redacts=False).isascii()


def status() -> ServiceStatus:
    def cause(app: str | None, workflow: str | None = None) -> DeadLetterCause:
        return DeadLetterCause(
            app_id=app, workflow=workflow, rule=None, mutation=None, reason="skipped", message=f"of {app}", place=None
        )

    return ServiceStatus(
        partitions=[
            PartitionStatus(id=n, position="1-0", end="2-0", lag=n, owner="host-7", written=5, trimmed=0)
            for n in range(64)
        ],
        letters=9,
        causes=[cause("mine"), cause("mine", "Secret"), cause("other"), cause(None)],
        rules={},
        workflows={},
        with_defaults=(),
        rule_faults="/etc/secret/rules: faulty",
        archive=ArchiveState(enabled=True, error="s3://secret-bucket does not answer"),
        uses=AppUses(apps=[AppUse(app_id="mine"), AppUse(app_id="other")]),
        faults={"gateway_tokens": "/etc/secret/path: faulty"},
        parked=[],
        again=[(1, "2", "7")],
        lost={"d": Activation(number=1, scope="other", digest="d", time=datetime(2026, 2, 1, tzinfo=UTC))},
    )


def test_the_state_for_one_app_names_no_other_app_worker_or_file() -> None:
    found = operation(status(), Layout(), "mine", all_apps=False)
    assert not re.search("other|host-7|secret", str(found))
    assert [row["app_id"] for row in found["apps"]] == ["mine"]
    assert [row["id"] for row in found["partitions"]] == list(Layout().partitions_of("mine"))
    assert {row["written"] for row in found["partitions"]} == {None}


def test_the_state_for_an_operator_is_that_of_the_command() -> None:
    whole = operation(status(), Layout(), None, all_apps=True)
    told = status().to_json()
    assert {name: whole[name] for name in told if name != "partitions"} == {
        name: value for name, value in told.items() if name != "partitions"
    }
    assert [row["owner"] for row in operation(status(), Layout(), "mine", all_apps=True)["partitions"]] == ["host-7"]
    assert ALL_APPS not in str(whole["apps"])


# ------------------------------------------------------------------------------------------------------- the link of up


def test_a_link_is_of_no_use_in_the_next_run(tmp_path: Path) -> None:
    links: list[str] = []
    for _ in range(2):
        with closing(ConsoleProcess(Settings.load(data=tmp_path, console_port=0), tmp_path)) as console:
            links.append(console.listen().partition("#token=")[2])
        file = tmp_path / TOKEN_FILE
        assert (file.read_text().strip(), file.stat().st_mode & 0o777) == (links[-1], 0o600)
    assert links[0] != links[1]
    assert min(map(len, links)) >= 43


def test_a_token_of_the_settings_is_in_the_link_as_a_browser_reads_it(tmp_path: Path) -> None:
    secret = "a+b/c=d#e%f&g?" * 3
    settings = Settings.load(data=tmp_path, console_port=0, console_token=secret)
    with closing(ConsoleProcess(settings, tmp_path)) as console:
        link = console.listen()
    assert unquote(link.partition("#token=")[2]) == secret
    assert re.fullmatch(r"console: http://127\.0\.0\.1:[0-9]+/#token=[\w%.~-]+", link)


async def test_a_visitor_of_a_console_that_cannot_start_gets_an_answer(tmp_path: Path) -> None:
    settings = Settings.load(data=tmp_path, console_port=0, console_tokens=tmp_path / "missing.yaml")
    console = ConsoleProcess(settings, tmp_path)
    base = console.listen().partition("#")[0].removeprefix("console: ")
    # The process finds no bus URL in an empty environment.
    watching = asyncio.create_task(console.watch({"PATH": os.environ["PATH"], "GRAPHWEFT_BUS_URL": "no url"}))
    try:
        async with httpx.AsyncClient(timeout=120) as client:
            answer = await client.get(base)
        assert (answer.status_code, answer.headers["Cache-Control"]) == (503, "no-store")
        assert "the output of `graphweft up` says which" in answer.text
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_a_client_that_reads_no_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "UNREAD_S", 0.2)
    gone = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"64000000")]})
        for _ in range(64):
            await send({"type": "http.response.body", "body": b"x" * 1_000_000, "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()

    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    with bound("127.0.0.1", 0) as listener:
        server = HttpServer(server_config(app, connections=10), lambda: ready.set_result(None))
        serving = asyncio.create_task(server.serve([listener]))
        await ready
        reader, writer = await asyncio.open_connection(*listener.getsockname(), limit=1_000)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(30):
            await gone.wait()
        with contextlib.suppress(ConnectionError):
            assert len(await reader.read()) < 64_000_000
        writer.close()
        server.should_exit = True
        await serving


# ------------------------------------------------------------------------------------------------- replays, and the log


def test_a_fifth_app_is_told_at_once_that_four_have_taken_all_places() -> None:
    limiter = RequestLimiter(LIMITS, name="console")
    with contextlib.ExitStack() as stack:
        for number in range(64):
            stack.enter_context(limiter.enter(f"app {number // 16}"))
        for app, refusal in (("app 0", (429, "too-many-requests")), ("fifth", (503, "overloaded"))):
            with pytest.raises(Problem) as error, limiter.enter(app):
                pass
            assert code(error) == refusal
            assert error.value.headers == {"Retry-After": "1"}
        assert "the console has too many open requests of all apps" in error.value.detail
    with limiter.enter("fifth"):
        pass


async def test_each_app_gets_its_turn_to_replay_the_log() -> None:
    sources: Any = SimpleNamespace(replaying=asyncio.Lock(), replayed=set[str]())
    order: list[str] = []
    began, go_on = asyncio.Event(), asyncio.Event()

    async def replay(app: str) -> None:
        async with _replay_turn(sources, app):
            order.append(app)
            began.set()
            await go_on.wait()

    first = asyncio.create_task(replay("greedy"))
    await began.wait()
    second = asyncio.create_task(replay("other"))
    await asyncio.sleep(0)
    for app in ("greedy", "other"):
        with pytest.raises(Problem) as error:
            await replay(app)
        assert code(error) == (503, "busy")
    go_on.set()
    await asyncio.gather(first, second)
    assert (order, sources.replayed, sources.replaying.locked()) == (["greedy", "other"], set(), False)


class _Log:
    """A log in memory that counts the entries that are read."""

    def __init__(self, sizes: list[int]) -> None:
        time = datetime(2026, 1, 1, tzinfo=UTC)
        self.entries = [
            Entry(offset=str(n), fields={b"d": b"x" * size}, received=time + timedelta(seconds=n))
            for n, size in enumerate(sizes, 1)
        ]
        self.read = 0

    async def before(self, partition: int, offset: str, *, limit: int) -> list[Entry]:
        found = [entry for entry in self.entries if int(entry.offset) <= int(offset)][-limit:]
        self.read += len(found)
        return found


async def test_a_look_at_the_log_is_bounded_by_bytes_and_says_so() -> None:
    log: Any = _Log([1_000_000] * 100)
    limits = ScanLimits(entries=2_000, size=4_000_000)
    found = [entry.offset async for _, entry in limits.within(newest_first(log, {0: "100"}))]
    assert (found, limits.cut) == (["100", "99", "98", "97"], True)
    assert log.read <= 32


async def test_a_look_at_the_log_ends_at_the_cursor() -> None:
    log: Any = _Log([1] * 100)
    limits = ScanLimits(entries=2_000, size=4_000_000)
    found = [entry.offset async for _, entry in limits.within(newest_first(log, {0: "100"}, {0: "97"}))]
    assert (found, limits.cut) == (["100", "99", "98"], False)
    assert [each async for each in newest_first(log, {0: "100"}, {0: "100"})] == []


# -------------------------------------------------------------------------------------------------------------- drawing


def test_a_picture_leaves_out_own_nodes_and_relationships_to_them() -> None:
    found = Picture(redacts=True)
    assert found.add_node(1, ["User"], "Ann")
    assert not found.add_node(2, ["__Progress"], None)
    found.add_neighbours([(7, "KNOWS", 1, 2, 2, ["__Progress"], None), (8, "KNOWS", 1, 3, 3, ["User"], "Bob")])
    assert ([*found.nodes], [*found.relationships]) == ([1, 3], [8])


def test_a_picture_has_a_limit() -> None:
    found = Picture(redacts=False)
    for number in range(MOST + 10):
        found.add_node(number, ["A"], None)
    assert len(found.nodes) == MOST


def test_hostile_text_is_escaped_in_a_page_and_in_mermaid() -> None:
    nodes = [
        {"id": 1, "labels": [HOSTILE], "caption": HOSTILE},
        {"id": 2, "labels": [], "caption": '"] --> x; click n0 "javascript:alert(1)"\n%%{init'},
    ]
    relationships = [{"id": 1, "type": HOSTILE, "start": 1, "end": 2}]
    page = as_html(HOSTILE, nodes, relationships, 2)
    assert "<script" not in page
    assert "<img" not in page
    assert "default-src 'none'" in page
    drawn = as_mermaid(nodes, relationships)
    assert len(drawn.splitlines()) == 4
    assert "<" not in drawn
    assert [line.count('"') for line in drawn.splitlines()] == [0, 2, 2, 2]
    assert "%%" not in drawn
    icon = as_mermaid([{"id": 1, "labels": ["A"], "caption": "fa:fa-car"}], [])
    assert "fa:fa" not in icon, "Mermaid would draw an icon in place of the text"


def test_a_layout_is_the_same_each_time_and_fits_the_picture() -> None:
    ids = list(range(30))
    places = layout(ids, [(n, n // 2) for n in ids])
    assert places == layout(ids, [(n, n // 2) for n in ids])
    assert len(set(places.values())) == 30
    assert all(0 <= x <= 1_200 and 0 <= y <= 800 for x, y in places.values())
    assert layout([], []) == {}
    assert layout([1], []) == {1: (60, 60)}


# ---------------------------------------------------------------------------------------------------- files of the page


def test_the_graph_library_is_the_published_one_with_its_licence() -> None:
    assets = Assets()
    found = {path: asset for path in assets.paths() if path.startswith("vendor/") and (asset := assets.get(path))}
    assert {path: hashlib.sha256(asset.content).hexdigest() for path, asset in found.items()} == LIBRARY


def test_the_page_has_no_inline_code_and_asks_no_other_server() -> None:
    asset = Assets().get("")
    assert asset is not None
    page = asset.content.decode()
    assert re.findall(r"<script[^>]*>(.*?)</script>", page, re.S) == [""]
    assert not re.search(r"\son\w+=|style=|https?://|<style", page)


def test_the_scripts_make_no_markup_of_text() -> None:
    assets = Assets()
    own = [path for path in assets.paths() if path.startswith("js/")]
    assert len(own) >= 10
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc|DOMParser|https?://"
    )
    for path in own:
        asset = assets.get(path)
        assert asset is not None
        assert not re.search(forbidden, asset.content.decode()), path


def test_a_path_outside_of_the_page_finds_nothing() -> None:
    for path in ("../app.py", "js/../../app.py", "/etc/passwd", "js", "js/", "%2e%2e/app.py", "js\\main.js"):
        assert Assets().get(path) is None


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e400"])
def test_a_tried_event_has_no_number_that_json_does_not_have(number: str) -> None:
    event = '{"id": "1", "source": "/s", "type": "a.b", "appid": "mine", "chatid": "c", "data": {"x": [NUMBER]}}'
    question = TryQuestion(app="mine", event=event.replace("NUMBER", number))
    with pytest.raises(Problem, match=r"data\.x\[0\]: NaN, infinity") as error:
        asyncio.run(try_event(cast("Any", None), viewer("read"), question))
    assert code(error) == (422, "invalid-event")
