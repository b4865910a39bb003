"""A workflow with errors keeps its rules, and hinders no other one."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from tests.edges.test_cli import Call, call
from tests.services.waiting import until

from graphweft_contracts import InvalidRules
from graphweft_contracts.layout import ALL_APPS
from graphweft_contracts.rules_log import newest
from graphweft_rules import RulesError, RuleSet
from graphweft_rules.matching.sound_rules import load_sound
from graphweft_workers.drivers import dialects
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.new_project import default_rule_files
from graphweft_workers.ports.bus import Bus
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.rule_faults import read_faults
from graphweft_workers.wiring.rules import load_new_rules, load_rules, load_usable_rules, push, push_if_new
from graphweft_workers.wiring.rules_folder import NEXT, RulesFolder, state_of

__all__ = ("call",)  # a fixture

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

RULES = """
version: "1.0"
mutation_rules:
  - name: seen
    events: ["number.add"]
    mutations:
      - {id: one, cypher: "MERGE (n:Seen {k: $k}) SET n.by = 'BY'", params: {k: $event.number}}
"""
BROKEN = {
    "yaml": "mutation_rules: [",
    "key": "mutation_rulez: []",
    "cypher": RULES.replace("MERGE", "MERRGE"),
    "server": RULES.replace("n.by =", "m.by ="),
    "base": 'version: "1.0"\nextends: ../_nowhere/base.yaml\n',
}


def write(folder: Path, workflow: str, text: str) -> Path:
    file = folder / workflow / "graph_injection.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


@pytest.fixture
async def folder(tmp_path: Path, url: str, bus: Bus, graph: FalkorDBStore) -> RulesFolder:
    write(tmp_path / "rules", "Bad", RULES)
    write(tmp_path / "rules", "Good", RULES)
    said.clear()
    settings = Settings.load(rules=tmp_path / "rules", bus_url=url, graph_url=url)
    return RulesFolder(settings, bus, graph, said.append)


said: list[str] = []


async def active(bus: Bus) -> dict[str, str]:
    activation = newest(await bus.rules.activations(), ALL_APPS)
    stored = await bus.rules.stored(activation.digest) if activation else None
    return {name.split("/")[0]: data.decode() for name, data in (stored.files if stored else {}).items()}


@pytest.mark.parametrize("fault", BROKEN)
async def test_a_workflow_with_errors_keeps_its_rules(
    folder: RulesFolder, bus: Bus, tmp_path: Path, fault: str
) -> None:
    assert await folder.look()
    assert await active(bus) == {"Bad": RULES, "Good": RULES}
    write(tmp_path / "rules", "Bad", BROKEN[fault])
    assert await folder.look()
    assert "have errors, so the ones before go on" in said.pop()
    kept = await read_faults(bus)
    assert "have errors, so the ones before go on" in kept
    assert f"{tmp_path}/rules/Bad/graph_injection.yaml:" in kept
    assert len(await bus.rules.activations()) == 1, "nothing else changed"
    write(tmp_path / "rules", "Bad", RULES)
    assert await folder.look()
    assert "have no errors any more" in said.pop()
    assert await read_faults(bus) == ""
    assert await folder.look()
    assert not said or "no errors" not in said[-1], "it is said once"
    write(tmp_path / "rules", "Bad", BROKEN[fault])
    assert await folder.look()
    said.clear()
    better = RULES.replace("BY", "better")
    write(tmp_path / "rules", "Good", better)
    write(tmp_path / "rules", "New", RULES)
    write(tmp_path / "rules", "NewBad", BROKEN[fault])
    assert await folder.look()
    told = said.pop()
    assert "are active: Good/graph_injection.yaml, New/graph_injection.yaml" in told
    assert "the rules of Bad have errors, so the ones before go on:" in told
    assert (await read_faults(bus)).startswith("the rules of Bad have errors"), "it does not say what became active"
    assert "the rules of NewBad have errors, and there are none from before:" in told
    assert "Bad/graph_injection.yaml:" in told
    assert await active(bus) == {"Bad": RULES, "Good": better, "New": RULES}
    write(tmp_path / "rules", "Bad", better)
    write(tmp_path / "rules", "NewBad", better)
    assert await folder.look()
    assert await active(bus) == {"Bad": better, "Good": better, "New": RULES, "NewBad": better}


async def test_a_workflow_that_is_removed_is_named_with_what_becomes_of_its_events(
    folder: RulesFolder, bus: Bus, tmp_path: Path
) -> None:
    assert await folder.look()
    (tmp_path / "rules/Bad/graph_injection.yaml").unlink()
    said.clear()
    assert await folder.look()
    assert said[0] == "no rules are left for Bad: events of these workflows become dead letters"
    assert said[1].endswith("are active: Bad/graph_injection.yaml (removed)")
    assert await active(bus) == {"Good": RULES}


async def test_push_leaves_broken_workflows_on_request(call: Call, url: str, bus: Bus, tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    write(rules, "Bad", RULES)
    write(rules, "Good", RULES)
    servers = {"GRAPHWEFT_BUS_URL": url, "GRAPHWEFT_GRAPH_URL": url}
    await bus.partitions.count()
    assert (await asyncio.to_thread(call, "rules", "push", str(rules), **servers)).code == 0
    write(rules, "Bad", BROKEN["server"])
    write(rules, "Good", RULES.replace("BY", "better"))
    write(rules, "Worse", BROKEN["yaml"])
    refused = await asyncio.to_thread(call, "rules", "push", str(rules), **servers)
    assert (refused.code, len(await bus.rules.activations())) == (2, 1)
    done = await asyncio.to_thread(call, "rules", "push", str(rules), "--leave-broken", "--json", **servers)
    found = json.loads(done.out)
    assert (done.code, found["number"], found["kept"], found["absent"]) == (0, 2, ["Bad"], ["Worse"])
    assert {finding["code"] for finding in found["findings"]} >= {"server-refused", "yaml-syntax"}
    assert await active(bus) == {"Bad": RULES, "Good": RULES.replace("BY", "better")}
    again = await asyncio.to_thread(call, "rules", "push", str(rules), "--leave-broken", **servers)
    assert again.code == 0
    assert "Bad has errors and keeps its active rules" in again.err
    assert "Worse has errors and no active rules" in again.err


def test_a_changed_base_of_a_broken_workflow_is_refused(tmp_path: Path) -> None:
    (tmp_path / "_base").mkdir()
    base = tmp_path / "_base/base.yaml"
    base.write_text(RULES)
    extends = 'version: "1.0"\nextends: ../_base/base.yaml\n'
    before = {f"{name}/graph_injection.yaml": extends.encode() for name in ("Bad", "Good")}
    before["_base/base.yaml"] = RULES.encode()
    write(tmp_path, "Good", extends)
    write(tmp_path, "Bad", extends + "mutation_rulez: []\n")
    kept = load_sound(tmp_path, before=before)
    assert (kept.rules.files, kept.kept, kept.absent) == (before, ("Bad",), ())
    base.write_text(RULES.replace("BY", "better"))
    with pytest.raises(RulesError) as refused:
        load_sound(tmp_path, before=before)
    assert {finding.code for finding in refused.value.findings} == {"changed-base", "unknown-key"}
    assert str(base) in str(refused.value)


async def test_the_default_rules_stay_until_there_is_a_folder_of_their_name(
    tmp_path: Path, url: str, bus: Bus, graph: FalkorDBStore, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    [default] = default_rule_files().values()
    both = {"default": default.decode(), "Good": RULES}
    settings = Settings.load(bus_url=url, graph_url=url)
    folder = RulesFolder(settings, bus, graph, said.append)
    said.clear()
    await folder.start(await folder.load())
    assert await active(bus) == {"default": default.decode()}
    rules = tmp_path / "workflows"
    write(rules, "Good", RULES)
    assert await folder.look()
    assert await active(bus) == both
    assert await folder.load() is None, "they are active, so nothing is loaded at the next start"
    # Nothing else that makes a folder active takes them away: a worker's start, and a push.
    named = Settings.load(rules=rules, bus_url=url, graph_url=url)
    assert await load_new_rules(named, bus) is None
    write(rules, "Good", RULES.replace("BY", "better"))
    new = await load_new_rules(named, bus)
    assert new is not None
    await push_if_new(bus, new, rules)
    assert await active(bus) == both | {"Good": RULES.replace("BY", "better")}
    write(rules, "Good", RULES.replace("BY", "best"))
    servers = {"GRAPHWEFT_BUS_URL": url, "GRAPHWEFT_GRAPH_URL": url}
    done = await asyncio.to_thread(call, "rules", "push", str(rules), **servers)
    assert (done.code, "the default rules stay active beside them" in done.out) == (0, True)
    assert await active(bus) == both | {"Good": RULES.replace("BY", "best")}
    own = await asyncio.to_thread(call, "rules", "push", str(rules), "--app", "shop", **servers)
    assert "the default rules stay active beside them" in own.out
    # A broken file beside them changes nothing either.
    write(rules, "Good", BROKEN["yaml"])
    assert await folder.look()
    assert await active(bus) == both | {"Good": RULES.replace("BY", "best")}
    # With a folder of the name they end, whatever it holds.
    write(rules, "Good", RULES)
    write(rules, "default", RULES)
    assert await folder.look()
    assert await active(bus) == {"default": RULES, "Good": RULES}
    assert "not active any more" not in "".join(said)


async def test_an_empty_folder_switches_the_default_rules_off(
    tmp_path: Path, url: str, bus: Bus, graph: FalkorDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = RulesFolder(Settings.load(bus_url=url, graph_url=url), bus, graph, said.append)
    said.clear()
    write(tmp_path / "workflows", "Good", RULES)
    await folder.start(await folder.load())
    assert sorted(await active(bus)) == ["Good", "default"]
    (tmp_path / "workflows/default").mkdir()
    assert await folder.look()
    assert await active(bus) == {"Good": RULES}
    assert "the default rules are not active any more" in said[0]
    (tmp_path / "workflows/default").rmdir()
    assert await folder.look()
    assert sorted(await active(bus)) == ["Good", "default"]


@pytest.mark.parametrize("fault", BROKEN)
async def test_a_start_uses_what_is_sound_and_keeps_the_errors(
    folder: RulesFolder, bus: Bus, tmp_path: Path, fault: str
) -> None:
    await folder.start(await folder.load())
    assert (await active(bus), said) == ({"Bad": RULES, "Good": RULES}, [])
    better = RULES.replace("BY", "better")
    write(tmp_path / "rules", "Bad", BROKEN[fault])
    write(tmp_path / "rules", "Good", better)
    await folder.start(await folder.load())
    assert await active(bus) == {"Bad": RULES, "Good": better}
    [told] = said
    assert told.startswith("the rules of Bad have errors, so the ones before go on:\n")
    assert re.search(r"Bad/graph_injection\.yaml:\d+:\d+: error ", told)
    assert await read_faults(bus) == told.removesuffix(f"\n{NEXT}")
    assert told.endswith(NEXT)
    assert folder.has_faults
    write(tmp_path / "rules", "Bad", RULES)
    assert await folder.look()
    assert await read_faults(bus) == ""


@pytest.mark.parametrize("fault", BROKEN)
async def test_a_first_start_without_any_sound_rules_fails(
    tmp_path: Path, url: str, bus: Bus, graph: FalkorDBStore, fault: str
) -> None:
    write(tmp_path / "rules", "Bad", BROKEN[fault])
    folder = RulesFolder(Settings.load(rules=tmp_path / "rules", bus_url=url, graph_url=url), bus, graph, said.append)
    with pytest.raises(RulesError):
        await folder.start(await folder.load())
    assert await bus.rules.activations() == []


async def test_errors_of_the_only_workflow_are_said_alike_beside_the_default_rules(
    folder: RulesFolder, bus: Bus, graph: FalkorDBStore, tmp_path: Path
) -> None:
    (tmp_path / "rules/Good/graph_injection.yaml").unlink()
    file = write(tmp_path / "rules", "Bad", BROKEN["key"])
    await push(bus, RuleSet.of_files(default_rule_files(), (), dialects()))
    expected = "the rules of Bad have errors, and there are none from before:\n"
    await folder.start(await folder.load())
    assert said.pop().startswith(expected)
    settings = Settings.load(rules=tmp_path / "rules")
    with pytest.raises(InvalidRules) as caught:
        load_rules(settings, as_stored=True)
    found = await load_usable_rules(settings, bus, graph, caught.value)  # as a role that starts later
    assert found.rules is None
    assert found.faults.startswith(expected)
    assert f"{file}:" in found.faults


async def test_a_file_that_is_saved_while_everything_starts_is_looked_at(
    folder: RulesFolder, bus: Bus, tmp_path: Path
) -> None:
    seen = state_of(tmp_path / "rules")
    await folder.start(await folder.load())
    better = RULES.replace("BY", "better than before")
    write(tmp_path / "rules", "Good", better)  # before the folder is followed
    following = asyncio.create_task(folder.follow(seen))

    async def is_active() -> bool:
        return await active(bus) == {"Bad": RULES, "Good": better}

    try:
        await until(is_active)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_a_start_and_a_save_say_what_they_replace_and_whom_they_do_not_reach(
    folder: RulesFolder, bus: Bus, tmp_path: Path
) -> None:
    await folder.start(await folder.load())
    first = newest(await bus.rules.activations(), ALL_APPS)
    assert first is not None
    write(tmp_path / "rules", "Good", RULES.replace("BY", "two"))
    assert await folder.look()
    bad = newest(await bus.rules.activations(), ALL_APPS)
    assert bad is not None
    assert "again" not in "".join(said)
    await bus.rules.activate(ALL_APPS, first.digest)  # a rollback
    await bus.rules.activate("shop", first.digest)
    said.clear()
    await folder.start(await folder.load())
    again, unreached = said
    assert again.startswith(f"rules {bad.digest[:12]} are active again, and replace {first.digest[:12]} of ")
    assert "do not reach shop, which has rules of its own" in unreached
    write(tmp_path / "rules", "Good", RULES.replace("BY", "three"))
    said.clear()
    assert await folder.look()
    assert any("do not reach shop" in each for each in said)
