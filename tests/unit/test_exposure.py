"""What the doctor says about an address: plain text, no password, or one that everybody knows."""

from __future__ import annotations

import pytest

from graphweft_workers.drivers.exposure import exposure


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("unix:///tmp/redis.sock", []),
        ("sqlite:///tmp/bus", []),
        ("redis://127.0.0.1:6379", []),
        ("redis://localhost", []),
        ("redis://[::1]:6379", []),
        ("kafka://127.0.0.1:1,127.0.0.2:2", []),
        ("kafka://[::1]:9092", []),
        ("kafka://[::1]:1,[2001:db8::1]:2", ["bus encryption:warn", "bus login:warn"]),
        ("redis://bus.example", ["bus encryption:warn", "bus login:warn"]),
        ("rediss://bus.example", ["bus login:warn"]),
        ("rediss://me:a-good-one@bus.example", []),
        ("redis://me:a-good-one@10.0.0.7", ["bus encryption:warn"]),
        ("kafka://127.0.0.1:1,b.example:2", ["bus encryption:warn", "bus login:warn"]),
        ("kafka+ssl://me:me@b.example:2", ["bus login:fail"]),
        ("bolt+s://neo4j:neo4j@g.example", ["bus login:fail"]),
        ("bolt://neo4j:password@127.0.0.1", ["bus login:warn"]),
        ("bolt://neo4j:only-on-this-machine@127.0.0.1", []),
        ("bolt+s://neo4j:only-on-this-machine@g.example", ["bus login:fail"]),
    ],
)
def test_the_doctor_warns_of_what_strangers_could_do(url: str, found: list[str]) -> None:
    checks = exposure("bus", url)
    assert [f"{check.name}:{check.state}" for check in checks] == found
    assert all(check.advice for check in checks)
    assert not any("a-good-one" in check.found + check.advice for check in checks)
