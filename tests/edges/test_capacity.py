"""``graphweft capacity``: a plan without servers, and with what events cost on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.services.commands import inside
from tests.services.environment import clean_environment
from tests.services.rules import TURNS, rules_folder

from graphweft import Event

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

LOAD = ("capacity", "--apps", "50", "--events", "1000")


def test_a_plan_names_every_role_and_what_limits() -> None:
    done = inside([*LOAD, "--requests", "50"], clean_environment())
    assert (done.code, done.err) == (0, "")
    for word in ("mutation", "injection", "gateway", "archive", "graph server", "bus", "Assumed"):
        assert word in done.out
    assert inside(["capacity", "--apps", "0", "--events", "1"], clean_environment()).code == 2


@pytest.mark.long
def test_a_measured_plan_counts_with_the_figures_of_this_machine(tmp_path: Path) -> None:
    rules = rules_folder(tmp_path, TURNS)
    events = [
        Event.create(
            "agent.turn_complete", app_id="shop", chat_id="c", workflow="Support", data={"agent_name": f"a{number}"}
        )
        for number in range(20)
    ]
    (tmp_path / "events.jsonl").write_text("".join(f"{event.model_dump_json(exclude_none=True)}\n" for event in events))
    measure = ["--rules", str(rules), "--measure", str(tmp_path / "events.jsonl")]
    done = inside([*LOAD, *measure, "--json"], clean_environment())
    assert done.code == 0, done.err
    found = json.loads(done.out)
    worker, write = found["measured"][:2]
    # How much depends on the machine; that a write of an app costs more than an event does not.
    assert 0 < worker["measured"] < write["measured"]
    assert found["figures"]["worker_write"] == write["measured"]
    (tmp_path / "none.jsonl").write_text("")
    none = inside([*LOAD, "--rules", str(rules), "--measure", str(tmp_path / "none.jsonl")], clean_environment())
    assert (none.code, "no event" in none.err) == (2, True)
    no_effect = inside([*LOAD, "--measure", str(tmp_path / "events.jsonl")], clean_environment())
    assert (no_effect.code, "have no effect by these rules" in no_effect.err) == (2, True)


def test_a_folder_without_rules_is_named(tmp_path: Path) -> None:
    empty = inside([*LOAD, "--rules", str(tmp_path)], clean_environment())
    assert (empty.code, "holds no rules" in empty.err) == (2, True)
    none = inside([*LOAD, "--rules", "3"], clean_environment())
    assert (none.code, "the rules folder '3' does not exist; name a folder" in none.err) == (2, True)
