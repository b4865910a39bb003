"""What every request queue promises, and with it the whole way from a client's question to its answer."""

# The state of a responder shows that a test has come as far as it needs.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AsyncExitStack
from uuid import uuid4

import pytest
from structlog.testing import capture_logs

from graphweft.transports.registry import make_transport
from graphweft_contracts import ContextReply, ContextRequest
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_workers.injection.responder import InjectionResponder
from graphweft_workers.ports.request_queue import MAX_REPLY_BYTES, RequestQueue, encode
from graphweft_workers.testing.suites.request_kit import (
    LateAnswers,
    RequestFixtures,
    RequestKit,
    ask_all,
    asked,
    at_once,
    echo,
    joined,
    newer,
    nothing_left,
    put,
    request,
    responding,
    take,
)
from graphweft_workers.testing.waiting import until


class RequestSuite(RequestFixtures):
    """What every request queue promises, against the bus of a driver."""

    async def test_each_request_goes_to_one_replica(self, kit: RequestKit) -> None:
        async with AsyncExitStack() as opened:
            queues = [
                await opened.enter_async_context(contextlib.aclosing(kit.queue(name, patient=True)))
                for name in ("one", "two")
            ]
            transport = await opened.enter_async_context(contextlib.aclosing(make_transport(kit.url)))
            requests = [request(context={"n": n}) for n in range(60)]
            seen: list[str] = []

            async def serve(queue: RequestQueue) -> None:
                while True:
                    for waiting in await queue.next(4):
                        seen.append(asked(waiting).id)
                        assert await queue.reply(asked(waiting).reply_to, echo(asked(waiting)))
                        queue.done(waiting.token)

            serving = [asyncio.create_task(serve(queue)) for queue in queues]
            replies = await asyncio.gather(*(transport.request(each) for each in requests))
            for task in serving:
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)
            assert [(reply.id, reply.text) for reply in replies] == [
                (each.id, str(each.context["n"])) for each in requests
            ]
            # What is read twice, while the second one joins, is answered twice.
            assert set(seen) == {each.id for each in requests}
            if kit.features.reads_once:
                assert len(seen) == 60

    async def test_what_is_done_does_not_come_again_and_what_is_not_does(self, kit: RequestKit) -> None:
        async with contextlib.aclosing(make_transport(kit.url)) as transport:
            first = kit.queue("first")
            asking = [asyncio.create_task(transport.request(request(context={"n": n}))) for n in range(6)]
            taken = await take(first, 6)
            for waiting in taken:
                if asked(waiting).context["n"] != 5:
                    await first.reply(asked(waiting).reply_to, echo(asked(waiting), "first"))
                    first.done(waiting.token)
            await asyncio.wait(asking[:5])
            # It goes without finishing what it has: as a process that is killed, but for what is done.
            first.leave = nothing_left  # type: ignore[method-assign]
            await first.aclose()
            async with contextlib.aclosing(kit.queue("second")) as second:
                again = await take(second, 1)
                while asked(again[-1]).context["n"] != 5:  # a position stands in front of what is not done
                    assert not kit.features.reads_once
                    again += await take(second, 1)
                assert await second.reply(asked(again[-1]).reply_to, echo(asked(again[-1]), "second"))
                second.done(again[-1].token)
                assert (await asking[5]).text == "second"
                assert [task.result().text for task in asking[:5]] == ["first"] * 5
                assert any(pending.taken_over for pending in again)

    async def test_a_responder_that_is_cancelled_leaves_what_it_has_to_others(self, kit: RequestKit) -> None:
        answers = LateAnswers()
        async with kit.client() as client:
            queue = kit.queue("cancelled")
            responder = InjectionResponder(queue, answers, max_requests=1)
            running = asyncio.create_task(responder.run())
            asking = [asyncio.create_task(client.context(agent="One", chat_id="c", context={"n": n})) for n in range(3)]
            await until(lambda: answers.waiting == 1 and len(responder._waiting) == 2)
            running.cancel()
            await asyncio.wait([running])
            assert running.cancelled()
            await queue.aclose()
            async with responding(kit, at_once, "other") as other:
                assert [(await task).text for task in asking] == ["0", "1", "2"]
                await until(lambda: other.answered >= 3)

    async def test_a_replica_that_leaves_hands_over_what_it_has_read(self, kit: RequestKit) -> None:
        answers = LateAnswers()
        async with kit.client() as client:
            async with responding(kit, answers) as responder:
                asking = [
                    asyncio.create_task(client.context(agent="One", chat_id="c", context={"n": n})) for n in range(20)
                ]
                await until(lambda: answers.waiting == 20)
                responder.stop()
                answers.open.set()
            assert [(reply.reason, reply.text) for reply in await asyncio.gather(*asking)] == [
                (None, str(n)) for n in range(20)
            ]
            _check_counts(kit, responder, answered=20)
            async with responding(kit, at_once, "next") as after:
                assert (await client.context(agent="One", chat_id="c", context={"n": 7})).text == "7"
            assert after.answered == 1

    async def test_an_answer_that_is_late_is_given_to_nobody(self, kit: RequestKit) -> None:
        async with contextlib.aclosing(kit.queue("r")) as queue, kit.client() as client:
            transport = client._transport
            await joined(transport, queue)
            with pytest.raises(TimeoutError):
                await transport.request(request(200))
            [late] = await take(queue, 1)
            await until(lambda: SYSTEM_CLOCK.now().timestamp() * 1000, lambda now: now >= asked(late).deadline_ms)
            again = asyncio.create_task(client.context(agent="One", chat_id="c", context={"n": 2}))
            [second] = await take(queue, 1)
            await queue.reply(asked(late).reply_to, echo(asked(late), "late"))
            for text in ("first", "second"):  # and of two answers the first counts
                await queue.reply(asked(second).reply_to, echo(asked(second), text))
            assert (await again).text == "first"
            queue.done(late.token)
            queue.done(second.token)

    async def test_a_late_request_is_dropped_and_counted(self, kit: RequestKit) -> None:
        late = request(-1, reply_to="graphweft.context.replies:0")
        async with kit.client() as client:
            async with responding(kit, at_once) as responder:
                assert (await client.context(agent="One", chat_id="c", context={"n": 1})).text == "1"
                await put(kit, late)
                await until(lambda: responder.expired == 1)
                assert (await client.context(agent="One", chat_id="c", context={"n": 2})).text == "2"
            _check_counts(kit, responder, answered=2, expired=1)

    async def test_a_request_that_breaks_the_contract_is_answered_so(self, kit: RequestKit) -> None:
        no_app = request().model_copy(update={"app_id": "../other"})
        async with contextlib.aclosing(make_transport(kit.url)) as transport, responding(kit, at_once) as responder:
            for broken, word in ((newer(), "mood"), (no_app, "app_id"), (newer(deadline_ms=10**30), "mood")):
                async with asyncio.timeout(120):
                    reply = await transport.request(broken)
                assert (reply.id, reply.reason, reply.partial) == (broken.id, "invalid_request", True)
                assert word in reply.detail
                assert "../other" not in reply.detail
            await put(kit, newer(-1, reply_to="graphweft.context.replies:0"))
            await until(lambda: responder.expired == 1)
            assert responder.answered == 0

    async def test_a_refusal_that_fails_ends_nothing(self, kit: RequestKit) -> None:
        async with contextlib.aclosing(make_transport(kit.url)) as transport, responding(kit, at_once) as responder:
            queue, send = responder._queue, responder._queue.reply

            async def reply(channel: str, reply: ContextReply) -> bool:
                if reply.reason == "invalid_request":
                    raise ValueError("a defect")
                return await send(channel, reply)

            assert (await transport.request(request(context={"n": 0}))).text == "0"
            queue.reply = reply  # type: ignore[method-assign]
            with capture_logs() as logs:
                unanswered = asyncio.create_task(transport.request(newer()))
                await until(lambda: {log["event"] for log in logs}, lambda said: "request_failed" in said)
            assert not unanswered.done()
            unanswered.cancel()
            await asyncio.gather(unanswered, return_exceptions=True)
            assert (await transport.request(request(context={"n": 1}))).text == "1"

    async def test_answers_go_to_clients_only(self, kit: RequestKit) -> None:
        forged = ["", "x", "graphweft:context:requests", "graphweft.context.replies", "graphweft.context.requests:0"]
        forged += [f"graphweft.context.replies:{number}" for number in ("9" * 9, "1" * 5_000, "-1", "\u0663", "0\n")]
        async with AsyncExitStack() as opened:
            await opened.enter_async_context(kit.listening(forged))
            queue = await opened.enter_async_context(contextlib.aclosing(kit.queue("r")))
            transport = await opened.enter_async_context(contextlib.aclosing(make_transport(kit.url)))
            await joined(transport, queue)
            for channel in forged:
                assert not await queue.reply(channel, echo(request(context={"n": 1})))

    async def test_an_answer_that_is_too_large_says_so(self, kit: RequestKit) -> None:
        async def answer(request: ContextRequest) -> ContextReply:
            return echo(request, "x" * request.context["n"])

        async with kit.client() as client, responding(kit, answer):
            room = MAX_REPLY_BYTES - len(encode(ContextReply(id=uuid4().hex)))
            for size in (room - 100, room + 1, 10 * room):
                reply = await client.context(agent="One", chat_id="c", context={"n": size})
                if size < room:
                    assert (reply.reason, len(reply.text)) == (None, size)
                else:
                    assert (reply.reason, reply.text, reply.partial) == ("internal_error", "", True)
                    assert str(MAX_REPLY_BYTES) in reply.detail

    async def test_clocks_that_differ_are_reported_once(self, kit: RequestKit) -> None:
        tells_age = kit.features.tells_age
        async with contextlib.aclosing(make_transport(kit.url)) as transport:
            with capture_logs() as logs:
                soon = request(300, reply_to="graphweft.context.replies:0")
                await put(kit, soon) if tells_age else None
                await until(lambda: SYSTEM_CLOCK.now().timestamp() * 1000, lambda now: now >= soon.deadline_ms + 200)
                async with responding(kit, at_once) as responder:
                    expired = 1 if tells_age else 0
                    await until(lambda: responder.expired == expired)
                    assert (await transport.request(request(context={"n": 1}))).text == "1"
                    assert "clock_skew" not in {log["event"] for log in logs}
                    for number in range(1, 4):  # a clock that is ten seconds behind
                        await put(kit, request(-10_000, reply_to="graphweft.context.replies:0"))
                        wanted = expired + number
                        await until(lambda: responder.expired == wanted)  # noqa: B023 - it is called in this round
                        assert (await transport.request(request(context={"n": 1}))).text == "1"
            skews = [log for log in logs if log["event"] == "clock_skew"]
            assert [(log["log_level"], 9_000 < log["late_ms"] < 60_000) for log in skews] == [
                ("warning", True)
            ] * expired

    async def test_overload_is_said_at_once(self, kit: RequestKit) -> None:
        answers = LateAnswers()
        async with kit.client() as client, responding(kit, answers, max_requests=2) as responder:
            asking = {
                asyncio.create_task(client.context(agent="One", chat_id="c", context={"n": n})) for n in range(38)
            }
            # Two are worked on, 32 wait.
            done = await until(lambda: {task for task in asking if task.done()}, lambda found: len(found) >= 4)
            assert {task.result().reason for task in done} == {"overloaded"}
            assert "GRAPHWEFT_MAX_REQUESTS" in next(iter(done)).result().detail
            answers.open.set()
            replies = await asyncio.gather(*asking)
            assert sorted(str(reply.reason) for reply in replies) == ["None"] * 34 + ["overloaded"] * 4
            await until(lambda: responder.answered >= 34)  # counted behind the reply
            assert (responder.answered, responder.shed) == (34, 4)

    async def test_a_request_that_would_be_late_is_refused_and_others_wait(self, kit: RequestKit) -> None:
        served = asyncio.Semaphore(0)

        async def answer(request: ContextRequest) -> ContextReply:
            await served.acquire()
            return echo(request)

        async with kit.client() as client, responding(kit, answer, max_requests=1) as responder:
            asking = [asyncio.create_task(client.context(agent="One", chat_id="c", context={"n": 0}))]
            await until(lambda: responder._free == 0)
            responder._apps["shop"].service_s = 5.0  # as requests took of late
            asking.append(asyncio.create_task(client.context(agent="One", chat_id="c", context={"n": 1})))
            await until(lambda: len(responder._waiting) == 1)
            short = await client.context(agent="One", chat_id="c", context={"n": 2}, budget_ms=12_000)
            assert short.reason == "overloaded"
            assert short.elapsed_ms < 6_000  # not when its time is nearly over, which would be after seven seconds
            served.release()
            served.release()
            assert [(await task).text for task in asking] == ["0", "1"]

    async def test_requests_that_take_long_already_count_before_they_are_answered(self, kit: RequestKit) -> None:
        answers = LateAnswers()
        async with kit.client() as client, responding(kit, answers, max_requests=1) as responder:
            asking = [asyncio.create_task(client.context(agent="One", chat_id="c", context={"n": 0}))]
            await until(lambda: responder._free == 0)
            asking.append(asyncio.create_task(client.context(agent="One", chat_id="c", context={"n": 1})))
            await until(lambda: len(responder._waiting) == 1)
            [first] = responder._begun
            responder._begun[first] = first.app.begun[first] = SYSTEM_CLOCK.monotonic() - 10
            short = await client.context(agent="One", chat_id="c", context={"n": 2}, budget_ms=15_000)
            assert short.reason == "overloaded"
            assert not asking[1].done()
            responder._begun[first] = first.app.begun[first] = SYSTEM_CLOCK.monotonic() - 110
            assert (await asking[1]).reason == "overloaded"
            assert not asking[0].done()
            answers.open.set()
            assert (await asking[0]).text == "0"

    async def test_an_app_leaves_half_of_the_places_to_the_others(self, kit: RequestKit) -> None:
        answers = LateAnswers()

        async def answer(request: ContextRequest) -> ContextReply:
            return await answers(request) if request.app_id == "shop" else echo(request)

        async with (
            kit.client() as shop,
            kit.client(app_id="bank") as bank,
            responding(kit, answer, max_requests=8) as responder,
        ):
            asking = [asyncio.create_task(shop.context(agent="One", chat_id="c", context={"n": n})) for n in range(104)]
            await until(lambda: responder.shed == 4)
            assert (answers.waiting, len(responder._waiting)) == (4, 96)
            for n in range(10):
                reply = await bank.context(agent="One", chat_id="c", context={"n": n}, budget_ms=120_000)
                assert (reply.reason, reply.text) == (None, str(n))
            answers.open.set()
            replies = await asyncio.gather(*asking)
            assert sorted(str(reply.reason) for reply in replies) == ["None"] * 100 + ["overloaded"] * 4

    async def test_a_full_room_makes_room_for_an_app_that_has_less(self, kit: RequestKit) -> None:
        served = asyncio.Semaphore(0)

        async def answer(request: ContextRequest) -> ContextReply:
            if request.app_id != "small":
                await served.acquire()
            return echo(request)

        budget_ms = 300_000
        async with (
            kit.client(budget_ms) as shop,
            kit.client(budget_ms, app_id="bank") as bank,
            kit.client(budget_ms, app_id="small") as small,
            responding(kit, answer, max_requests=8) as responder,
        ):
            asking = [asyncio.create_task(shop.context(agent="One", chat_id="c", context={"n": n})) for n in range(100)]
            await until(lambda: len(responder._waiting) == 96)
            asking += [asyncio.create_task(bank.context(agent="One", chat_id="c", context={"n": n})) for n in range(36)]
            await until(lambda: len(responder._waiting) == 128)
            responder._service_s = 40.0  # as requests took of late: behind all who wait it would be too late
            asked = asyncio.create_task(small.context(agent="One", chat_id="c", context={"n": 1}))
            await until(lambda: responder.shed == 1)
            assert not asked.done()
            served.release()
            assert (await asked).text == "1"
            assert sum(task.done() for task in asking) <= 2  # the one that made room, and the one that gave its place
            for _ in asking:
                served.release()
            replies = await asyncio.gather(*asking)
            assert sorted(str(reply.reason) for reply in replies) == ["None"] * 135 + ["overloaded"]
            assert "overloaded" in {reply.reason for reply in replies[:100]}

    async def test_a_bus_that_restarts_under_load_is_survived(self, kit: RequestKit) -> None:
        async with kit.client(8_000) as client, AsyncExitStack() as opened:
            one = await opened.enter_async_context(responding(kit, at_once, "one"))
            two = await opened.enter_async_context(responding(kit, at_once, "two"))
            assert (await client.context(agent="One", chat_id="c", context={"n": 0}, budget_ms=120_000)).reason is None
            asking = asyncio.create_task(ask_all(client, range(3_000), budget_ms=1_000))
            await until(lambda: one.answered + two.answered > 500)
            await kit.restart()
            replies = await asking
            for n, reply in enumerate(replies):
                assert reply.text == str(n) or reply.reason in ("bus_unavailable", "timeout"), reply

            async def back() -> bool:
                return (await client.context(agent="One", chat_id="c", context={"n": 0})).reason is None

            await until(back)
            assert {reply.reason for reply in await ask_all(client, range(200), budget_ms=120_000)} == {None}


def _check_counts(kit: RequestKit, responder: InjectionResponder, *, answered: int, expired: int = 0) -> None:
    """Nothing else may be counted. Where a request may be read twice, a busy machine may take one over as well."""
    counts = responder.counts()
    taken = {name: counts.pop(name) for name in ("taken_over", "won")}
    assert counts == {"answered": answered, "expired": expired, "refused": 0, "shed": 0}
    if kit.features.reads_once:
        assert taken == {"taken_over": 0, "won": 0}
