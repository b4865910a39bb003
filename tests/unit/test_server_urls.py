"""URLs of several servers: Redis behind Sentinel, a Redis Cluster, and the options of Kafka's topics and racks."""

from __future__ import annotations

import pytest

from graphweft.transports.access import ServerLogin
from graphweft.transports.kafka.connection import Copies
from graphweft.transports.kafka.url import split_kafka_url
from graphweft.transports.redis.connection import connect
from graphweft.transports.redis.url import split_redis_url
from graphweft_contracts import InvalidSettings
from graphweft_workers.drivers import bus_driver, graph_driver
from graphweft_workers.drivers.exposure import exposure


def test_a_sentinel_url_names_sentinels_and_service() -> None:
    found = split_redis_url(
        "redis+sentinel://me:p%40w@one:26380,two,[::1]:7/my%20master/3?wait_replicas=2&client_name=x&sentinel_password=s%2F"
    )
    assert found.sentinels == (("one", 26380), ("two", 26379), ("::1", 7))
    assert (found.service, found.wait_replicas, found.sentinel_login) == ("my master", 2, {"password": "s/"})
    assert found.server == "redis://me:p%40w@sentinel/3?client_name=x"
    assert "p%40w" not in repr(found)


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://",
        "redis+sentinel://one",
        "redis+sentinel://one/",
        "redis+sentinel://one:x/service",
        "redis+sentinel://me:secret@/service",
        "redis+sentinel://me:secret@one,,two/service",
        "redis+sentinel://one/service/db",
        "redis+sentinel://me:secret@one/service?wait_replicas=all",
        "redis://me:secret@one?wait_replicas=-1",
    ],
)
def test_an_invalid_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(InvalidSettings) as refused:
        split_redis_url(url)
    assert "secret" not in str(refused.value)
    for driver in (bus_driver(url), graph_driver(url)):
        with pytest.raises(ValueError, match="invalid") as refused_too:
            driver.check_url(url)
        assert "secret" not in str(refused_too.value)


@pytest.mark.parametrize(
    "url", ["redis://h", "redis://u:p@h:1/2?client_name=wait_replicas", "rediss://h?ssl_ca_certs=/c%20a", "unix:///a b"]
)
def test_the_url_of_one_server_stays_as_it_is(url: str) -> None:
    assert split_redis_url(url).server == url
    assert split_redis_url(url).wait_replicas == 0


def test_the_url_of_one_server_may_wait_for_replicas() -> None:
    found = split_redis_url("redis://h/1?wait_replicas=1&client_name=x")
    assert (found.server, found.wait_replicas) == ("redis://h/1?client_name=x", 1)


async def test_a_client_behind_sentinel_takes_the_options_of_its_url() -> None:
    client = connect("redis+sentinel://me:pw@one,two:7/main/3?client_name=x", io_timeout_s=4.0, decode=True)
    options = client.connection_pool.connection_kwargs
    assert (options["username"], options["password"], options["db"]) == ("me", "pw", 3)
    assert (options["client_name"], options["socket_timeout"], options["decode_responses"]) == ("x", 4.0, True)
    assert client.connection_pool.service_name == "main"
    await client.aclose()
    with pytest.raises(InvalidSettings, match=r"unknown option: .*wait_replicas.*sentinel_username"):
        connect("redis+sentinel://one/main?wait_replica=1", io_timeout_s=None)


def test_a_scheme_that_no_driver_has_names_those_that_work() -> None:
    for find in (bus_driver, graph_driver):
        with pytest.raises(InvalidSettings, match=r"redis\+sentinel://") as refused:
            find("rediz://one")
        assert "cluster" not in str(refused.value)


def test_logins_and_certificates_apply_behind_sentinel() -> None:
    login = ServerLogin(user="u", password="p", ca="/c.pem")
    url = login.applied("rediss+sentinel://one,two/main", "bus")
    assert url == "rediss+sentinel://u:p@one,two/main?ssl_ca_certs=/c.pem"
    with pytest.raises(InvalidSettings, match=r"TLS needs rediss\+sentinel://"):
        login.applied("redis+sentinel://one/main", "bus")
    checks = [each.name for each in exposure("bus", "redis+sentinel://one.example,127.0.0.1/main")]
    assert checks == ["bus encryption", "bus login"]


def test_a_kafka_url_names_copies_and_rack() -> None:
    found = split_kafka_url("kafka://a,b:1,c?replication_factor=3&min_insync_replicas=2&client_rack=eu-1")
    assert (found.hosts, found.replication_factor, found.min_insync_replicas) == ("a,b:1,c", 3, 2)
    assert found.client_rack == "eu-1"
    copies = Copies(replication_factor=3, min_insync_replicas=2)
    assert (copies.replicas(1), copies.settings) == (3, {"min.insync.replicas": "2"})
    assert (Copies().replicas(1), Copies().replicas(5), Copies().settings) == (1, 3, {})


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("replication_factor=0", "invalid replication_factor"),
        ("replication_factor=two", "invalid replication_factor"),
        ("min_insync_replicas=", "invalid min_insync_replicas"),
        ("min_insync_replicas=3&replication_factor=2", "no record could be acknowledged"),
        ("acks=1", "only sasl, ca, cert, key, replication_factor, min_insync_replicas and client_rack"),
    ],
)
def test_copies_that_no_topic_can_have_are_refused(query: str, said: str) -> None:
    with pytest.raises(InvalidSettings, match=said):
        split_kafka_url(f"kafka://u:secret@h?{query}")
