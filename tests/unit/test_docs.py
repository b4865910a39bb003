"""Documents that would lie without a test."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from graphweft_contracts.events import LIFECYCLE, Payload, TurnPayload
from graphweft_rules import lint
from graphweft_workers.drivers import dialects

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]


def test_the_rules_of_the_guide_are_sound(tmp_path: Path) -> None:
    examples = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/rules.md").read_text("utf-8"), re.DOTALL)
    examples = [example for example in examples if "tests:" not in example]
    assert len(examples) == 5
    base = tmp_path / "_shared/graph_injection_base.yaml"
    base.parent.mkdir()
    base.write_text("mutation_rules: []\n")
    for number, example in enumerate(examples):
        rules = tmp_path / f"Guide{number}/graph_injection.yaml"
        rules.parent.mkdir()
        rules.write_text(example)
    assert [str(finding) for finding in lint([tmp_path], dialects())] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_example_takes_a_scope_from_what_an_agent_may_write(page: Path) -> None:
    assert re.findall(r"memory: *\{[^}]*\$context\.[^}]*\}", page.read_text("utf-8")) == []


def test_the_demo_rules_are_sound() -> None:
    assert [str(finding) for finding in lint([ROOT / "examples/airline/workflows"], dialects())] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), target


def headings(page: Path) -> set[str]:
    """Return the anchors of a page, as GitHub makes them."""
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text("utf-8"))
    found = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", each) for each in re.findall(r"(?m)^#+ (.*)$", text)]
    plain = [re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in found]
    return {f"{each}-{before}" if (before := plain[:at].count(each)) else each for at, each in enumerate(plain)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_name_headings_that_exist(page: Path) -> None:
    for target, heading in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", page.read_text("utf-8")):
        file = page.parent / target if target else page
        if file.suffix == ".md":
            assert heading in headings(file), f"{target}#{heading}"


def test_the_page_of_changes_names_files_that_exist() -> None:
    text = (ROOT / "docs/where.md").read_text("utf-8")
    short = dict(re.findall(r"`([WRCK])/` (?:stands )?for\s+`([\w/]+)/`", text))
    assert short.keys() == {*"WRCK"}
    named = re.findall(r"`((?:[WRCK]|docs|tools|tests|clients)/[\w./-]*)[*]?`", text)
    assert len(named) > 60
    for each in named:
        first, _, rest = each.partition("/")
        assert (ROOT / short.get(first, first) / rest).exists(), each


def test_the_page_on_events_has_every_type_with_its_fields() -> None:
    rows = re.findall(r"(?m)^\| `([a-z_.]+)` \| [^|]+ \| ([^|]+) \|$", (ROOT / "docs/events.md").read_text("utf-8"))
    told = {type: set(re.findall(r"`(\w+)`", fields)) for type, fields in rows}
    assert told.keys() == LIFECYCLE.keys()
    for type, payload in LIFECYCLE.items():
        declared = payload.model_fields.keys() - Payload.model_fields.keys()
        assert declared - TurnPayload.model_fields.keys() <= told[type] <= declared, type


def test_every_adapter_is_in_the_lists_of_runtimes() -> None:
    overview = (ROOT / "docs/runtimes/README.md").read_text("utf-8")
    rows = re.findall(r"(?m)^\| \[.*$", overview)
    compared = re.findall(
        r"\| integrations with runtimes \| \[(\d+)\]", (ROOT / "docs/comparison.md").read_text("utf-8")
    )
    assert compared == [str(len(rows))]
    readme = (ROOT / "README.md").read_text("utf-8")
    for page in (ROOT / "docs/runtimes").glob("*.md"):
        assert page.name == "README.md" or f"]({page.name}" in overview, page.name
    for extra in re.findall(r"`graphweft(?:-runtimes)?\[([a-z0-9-]+)\]`", "\n".join(rows)):
        assert f"`{extra}`" in readme, extra


def test_the_readme_begins_with_the_demo_and_the_tests() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    before, commands, after = readme.split("```", 2)
    assert "#" not in before.removeprefix("# ")  # under the first paragraph, before the next heading
    assert "pip install" in after
    lines = commands.removeprefix("sh\n").splitlines()
    assert [line.split()[:2] for line in lines] == [["git", "clone"], ["make", "demo"], ["make", "test"]]
    assert "://" not in commands
    targets = re.findall(r"(?m)^([a-z]+):.*## ", (ROOT / "Makefile").read_text("utf-8"))
    assert {"demo", "test"} <= set(targets)


def test_the_readme_names_each_extra_and_no_other() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    rows = re.findall(r"(?m)^\| (`[^|]*) \| [^|]* \|$", readme.partition("| extra | adds |")[2].partition("\n\n")[0])
    told = {name for row in rows for name in re.findall(r"`([\w-]+)`", row)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert told == project["optional-dependencies"].keys()
    commands = re.findall(r"pip install '?graphweft(?:\[([\w,-]+)\])?'?", readme)
    assert {name for each in commands for name in each.split(",") if name} <= told


def test_the_figures_of_the_readme_are_those_of_the_pages_behind_it() -> None:
    def figures(page: str) -> set[str]:
        text = (ROOT / page).read_text("utf-8").partition("## Figures")[2].partition("\n## ")[0]
        return set(re.findall(r"\d[\d,.]*(?:-[\d.]+)?", re.sub(r"\]\([^)]*\)", "", text)))

    assert len(figures("README.md")) > 10
    assert figures("README.md") - figures("docs/index.md") == set()


def test_the_page_shows_how_the_toy_driver_runs_the_suites() -> None:
    page = (ROOT / "docs/architecture.md").read_text("utf-8").partition("## Add a driver")[2]
    [shown] = re.findall(r"```python\n(.*?)```", page.partition("\n## ")[0], re.DOTALL)
    tests = (ROOT / "tests/ports/test_toy_driver.py").read_text("utf-8")
    lines = iter(tests.splitlines())
    assert all(line in lines for line in shown.splitlines() if line)
