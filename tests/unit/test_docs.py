"""Documents that would lie without a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from graphweft_rules import lint

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]


def test_the_rules_of_the_guide_are_sound(tmp_path: Path) -> None:
    examples = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/rules.md").read_text("utf-8"), re.DOTALL)
    assert len(examples) == 3
    base = tmp_path / "_shared/graph_injection_base.yaml"
    base.parent.mkdir()
    base.write_text('version: "1.0"\n')
    for number, example in enumerate(examples):
        rules = tmp_path / f"Guide{number}/graph_injection.yaml"
        rules.parent.mkdir()
        rules.write_text(example)
    assert [str(finding) for finding in lint([tmp_path])] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_example_takes_a_scope_from_what_an_agent_may_write(page: Path) -> None:
    assert re.findall(r"memory: *\{[^}]*\$context\.[^}]*\}", page.read_text("utf-8")) == []


def test_the_demo_rules_are_sound() -> None:
    assert [str(finding) for finding in lint([ROOT / "examples/airline/workflows"])] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), target
