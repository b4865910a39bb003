"""What each app uses: the sum of the records, beside the quotas."""

from __future__ import annotations

from collections import Counter

from graphweft_workers.apps import AppPolicies, AppPolicy, Quotas
from graphweft_workers.engine.usage.app_use import LETTERS, Refusals, encode_letters, read_uses
from graphweft_workers.engine.usage.partition_usage import AppLoad, GraphMeasure, PartitionUsage
from graphweft_workers.ports.dead_letters import LettersOfApp
from graphweft_workers.wiring.app_uses import AppUses

NOW = 1_000.0


def partition(names: dict[str, int] | None = None, **sizes: int) -> bytes:
    graphs = {
        app_id: GraphMeasure(names=number, memory=number * 10, time=number) for app_id, number in (names or {}).items()
    }
    usage = PartitionUsage(graphs=graphs)
    usage.add({app_id: AppLoad(events=60, size=size) for app_id, size in sizes.items()}, 0, 100, NOW)
    return usage.encode(NOW)


def test_the_use_of_an_app_is_the_sum_of_all_records() -> None:
    records = {
        "partition:0": partition({"acme": 5}, acme=100, other=7),
        "partition:1": partition({"acme": 9}, acme=50),
        "gateway:a": Refusals(time=NOW, apps={"acme": Counter(events_per_s=2)}).encode(),
        "gateway:b": Refusals(time=NOW, apps={"acme": Counter(events_per_s=3, dead_letters=1)}).encode(),
        LETTERS: encode_letters({"acme": LettersOfApp(count=4, size=1_000), "": LettersOfApp(count=9, size=9)}),
    }
    policies = AppPolicies(apps={"acme": AppPolicy(quotas=Quotas(stored_bytes=2_300, dead_letters=2, events_per_s=4))})
    [acme, other], unread = read_uses(records, policies, NOW)
    assert not unread
    assert (acme.app_id, acme.stored_bytes, acme.dead_letters, acme.property_names) == ("acme", 1_150, 4, 9)
    assert acme.graph_bytes == 90, "the latest measure counts"
    assert acme.events_per_s == 2.0
    assert acme.refused == {"events_per_s": 5, "dead_letters": 1}
    assert acme.shares() == {
        "events_per_s": 0.5, "stored_bytes": 0.5, "dead_letters": 2.0, "property_names": 0.0009,
    }  # fmt: skip
    assert (other.app_id, other.stored_bytes, other.shares()) == ("other", 7, {"property_names": 0.0})
    [found, _] = AppUses(apps=[acme, other]).to_json()
    assert found["over_quota"] == ["dead_letters"]
    assert found["use_percent"]["stored_bytes"] == 50.0
    assert found["quotas"] == {
        "events_per_s": 4, "stored_bytes": 2_300, "dead_letters": 2, "property_names": 10_000,
    }  # fmt: skip


def test_what_the_bus_counts_now_goes_before_the_record() -> None:
    records = {LETTERS: encode_letters({"acme": LettersOfApp(count=4, size=1_000)})}
    [acme], _ = read_uses(records, AppPolicies(), NOW, letters={"acme": LettersOfApp(count=1, size=10)})
    assert (acme.dead_letters, acme.stored_bytes) == (1, 10)


def test_a_record_that_cannot_be_read_is_named_and_the_others_count() -> None:
    records = {"partition:0": b"{}", "gateway:x": b"no", "what": b"1", "partition:1": partition(acme=5)}
    [acme], unread = read_uses(records, AppPolicies(), NOW)
    assert acme.stored_bytes == 5
    assert unread == ["partition:0", "gateway:x"]


def test_a_thousand_apps_are_shown_as_twenty_rows_those_nearest_to_a_quota_first() -> None:
    records = {
        f"partition:{number}": partition(**{f"a{number}_{app}": app for app in range(125)}) for number in range(8)
    }
    policies = AppPolicies(apps={"a3_7": AppPolicy(quotas=Quotas(stored_bytes=8))})
    uses, _ = read_uses(records, policies, NOW)
    assert len(uses) == 1_000
    assert uses[0].app_id == "a3_7"
    assert [use.stored_bytes for use in uses[1:9]] == [124] * 8
