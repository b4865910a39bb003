"""The documentation site: the navigation has every page, links lead somewhere, and what it says of the code is true."""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import get_args

import pytest
from starlette.routing import Route
from website import llms
from website.built import remote_assets
from website.commands import commands
from website.markdown import anchors, for_site, lines_outside_code, links, table
from website.pages import GENERATED, ROOT, configuration, files, listed, pages
from website.schemas import openapi

from graphweft import Client
from graphweft_contracts.context import ReasonCode
from graphweft_contracts.dead_letters import DeadLetterReason
from graphweft_workers.apps.policies import read_policies
from graphweft_workers.cli.command_table import COMMANDS, Group
from graphweft_workers.gateway.app import make_app
from graphweft_workers.settings.settings import Settings


@pytest.fixture(scope="module")
def site() -> dict[str, str]:
    return pages()


@pytest.fixture(scope="module")
def others() -> dict[str, bytes]:
    return files() | {"llms.txt": b"", "llms-full.txt": b""}


def test_the_navigation_has_every_page_once(site: dict[str, str]) -> None:
    order = listed(configuration(site)["nav"])
    assert sorted(order) == sorted(site)


def test_links_and_anchors_lead_somewhere(site: dict[str, str], others: dict[str, bytes]) -> None:
    # What pages link to may be Markdown too, such as what an example says of itself.
    texts = site | {place: content.decode() for place, content in others.items() if place.endswith(".md")}
    known = {place: anchors(text) for place, text in texts.items()}
    lost = []
    for place, text in texts.items():
        for target in links(text):
            path, _, anchor = target.partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            wanted = posixpath.normpath(posixpath.join(posixpath.dirname(place), path)) if path else place
            if wanted not in known and wanted not in others:
                lost.append(f"{place}: {target}")
            elif anchor and anchor not in known.get(wanted, {anchor}):
                lost.append(f"{place}: {target} has no such heading")
    assert lost == []


def test_anchors_of_the_sources_are_there_too() -> None:
    """On a forge, pages are read as they are in the checkout, README and changelog included."""
    sources = {
        path.resolve(): anchors(path.read_text("utf-8")) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
    }
    lost = []
    for page in sources:
        for target in links(page.read_text("utf-8")):
            path, _, anchor = target.partition("#")
            wanted = (page.parent / path).resolve() if path else page
            if anchor and wanted in sources and anchor not in sources[wanted]:
                lost.append(f"{page.relative_to(ROOT)}: {target}")
    assert lost == []


def test_pages_mean_the_same_to_a_forge_and_to_the_site(site: dict[str, str]) -> None:
    """The site needs an empty line before lists and tables, and would load Mermaid from elsewhere."""
    faults = []
    for place, text in site.items():
        before, lines = "", text.split("\n")
        for number, line, is_text in lines_outside_code(text):
            plain = is_text and before and not re.match(r"\s|[-*] |\d+\. |\||#|```", before)
            if plain and re.match(r"[-*] |\d+\. |\|", line):
                faults.append(f"{place}:{number + 1}: {line[:40]}")
            if is_text and line.startswith("|") and not before:
                head = lines[number + 1] if number + 1 < len(lines) else ""
                if not re.fullmatch(r"\|( ?:?-+:? ?\|)+", head):
                    faults.append(f"{place}:{number + 1}: a table without a head: {line[:40]}")
            before = line
        if "```mermaid" in text:
            faults.append(f"{place}: Mermaid")
    assert faults == []


def test_the_reference_has_all_commands_and_settings(site: dict[str, str]) -> None:
    names = {
        f"graphweft {name}{inner}"
        for name, entry in COMMANDS.items()
        for inner in ([f" {each}" for each in entry.commands] if isinstance(entry, Group) else [""])
    }
    assert {name for name, _, _ in commands()} == names
    assert all(f"## `{name}`\n" in site["reference/commands.md"] for name in names)
    assert all(f"`GRAPHWEFT_{name.upper()}`" in site["reference/settings.md"] for name in Settings.model_fields)
    assert "`--budget-ms" in site["reference/commands.md"]


def test_the_http_reference_has_the_routes_of_the_gateway(site: dict[str, str]) -> None:
    gateway = make_app(client=Client("redis://127.0.0.1:1"), connect=lambda: pytest.fail("no bus"), insecure_app="a")
    routes = {
        (route.path, method)
        for route in gateway.routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    told = {(path, method.upper()) for path, methods in openapi()["paths"].items() for method in methods}
    assert routes == told | {("/openapi.json", "GET")}
    assert all(f"## `{method} {path}`\n" in site["reference/http.md"] for path, method in told)


def test_every_page_of_the_reference_has_content(site: dict[str, str]) -> None:
    assert all(len(site[place]) > 1_500 for place in GENERATED)
    assert "async emit(event: Event" in site["reference/python.md"]
    assert "`mutation_rules[].mutations[].cypher`" in site["reference/files.md"]
    assert "## `tool.call_complete`" in site["reference/events.md"]


def test_troubleshooting_has_all_reasons_and_messages_of_the_code() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text("utf-8")
    for reason in (*get_args(ReasonCode), *get_args(DeadLetterReason)):
        assert f"`{reason}`" in page, reason
    code = "".join(
        re.sub(r'"\s*\n\s*f?"', "", path.read_text("utf-8"))
        for folder in ("client", "rules", "workers")
        for path in (ROOT / folder).rglob("*.py")
    )
    messages = re.findall(r"(?m)^> `(.+)`$", page)
    assert len(messages) > 15
    for message in messages:
        parts = [re.escape(part.strip(" `")) for part in message.split("…")]
        assert re.search(".{0,120}?".join(parts), code), message


def test_figures_are_those_of_the_benchmarks() -> None:
    benchmarks = (ROOT / "docs/benchmarks.md").read_text("utf-8")
    for page in ("docs/index.md", "README.md"):
        [section] = re.findall(r"## Figures\n(.*?)\n## ", (ROOT / page).read_text("utf-8"), re.DOTALL)
        for number in re.findall(r"\d[\d,.]*\d", section):
            assert number in benchmarks, (page, number)


def test_code_of_pages_that_need_a_model_is_python() -> None:
    for page in ("README.md", "docs/index.md", "docs/guides/tenants.md", "docs/guides/migrate.md"):
        for language, text in re.findall(r"```(py|python)\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL):
            compile(text, page, "exec")
            assert language


def test_files_of_the_guides_are_accepted(tmp_path: Path) -> None:
    tenants = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/guides/tenants.md").read_text("utf-8"), re.DOTALL)
    assert len(tenants) == 2
    for text in tenants:
        (tmp_path / "apps.yaml").write_text(text)
        read_policies(tmp_path / "apps.yaml")


def test_llms_txt_has_a_line_for_every_page(site: dict[str, str]) -> None:
    order = listed(configuration(site)["nav"])
    index = llms.index(site, order)
    assert re.findall(r"(?m)^- \[[^\]]+\]\(([^)]+)\): \S", index) == order
    full = llms.full(site, order)
    assert "# Tutorial" in full
    assert "# Changelog" not in full


def test_what_would_be_loaded_from_elsewhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "good.html").write_text(
        '<link rel="stylesheet" href="a.css"><script src="a.js"></script><a href="https://example.org">x</a>'
        '<link rel="canonical" href="https://example.org">'
    )
    assert remote_assets(tmp_path) == []
    (tmp_path / "a.css").write_text("@font-face{src:url(https://fonts.example/a.woff2)}")
    (tmp_path / "bad.html").write_text(
        '<script defer src="https://cdn.example/x.js"></script><img alt=x src=//img.example/y.png>'
        '<link href="https://fonts.example/z.css" rel="stylesheet"><pre class="mermaid">'
    )
    assert len(remote_assets(tmp_path)) == 5


def test_links_in_code_are_no_links() -> None:
    assert links("a [b](c.md#d)\n`[x](y)` [e](f)\n```\n[g](h)\n```\n![i](j.png)") == ["c.md#d", "f", "j.png"]
    assert table(("a",), [("x | y",)]).splitlines()[-1] == "| x \\| y |"


def test_lists_and_cells_are_turned_for_the_site() -> None:
    numbered = "1. a:\n\n   ```sh\n   - x\n   ```\n2. b"
    given = f"{numbered}\n\ntext\n\n```yaml\n- k:\n  v\n```\n- c\n- d\n\n| `x \\| y` | z \\| w |"
    wanted = given.replace("\n   ", "\n    ").replace("```\n2. b", "```\n\n2. b").replace("`x \\| y`", "`x | y`")
    assert for_site(given) == wanted


def test_the_openapi_document_is_json() -> None:
    assert json.loads(files()["openapi.json"]) == openapi()
