"""An agent, a tool and a follower of what took effect, as FastStream subscribers."""

import asyncio

from faststream.redis import RedisBroker, RedisRouter, StreamSub

from graphweft.settings import ClientSettings
from graphweft_runtimes.faststream import EFFECTS_STREAM, AgentContext, Effects, FastStreamAdapter

graphweft = FastStreamAdapter(app_id="acme", workflow_name="Support", budget_ms=5_000)
agents = RedisRouter(middlewares=[graphweft.agent("Ann")])
tools = RedisRouter(middlewares=[graphweft.tool("lookup")])
broker = RedisBroker(ClientSettings.from_environment().bus_url, logger=None)  # the bus of `graphweft up` here
seen: asyncio.Queue[Effects] = asyncio.Queue()


@tools.subscriber("lookup")
async def lookup(order: str) -> str:
    return f"{order} is on its way"


@agents.subscriber("questions")
async def answer(question: str, context: AgentContext) -> str:
    found = await broker.request(question.rsplit(maxsplit=1)[-1], "lookup", headers={"chat_id": "c1"}, timeout=30)
    return f"{await found.decode()}; orders known before: {context.text.count('on its way')}"


@broker.subscriber(stream=StreamSub(EFFECTS_STREAM, group="followers", consumer="one"))
async def follow(effects: Effects) -> None:
    seen.put_nowait(effects)


async def main(*questions: str) -> None:
    broker.include_routers(agents, tools)
    async with broker, graphweft:
        await broker.start()
        for question in questions:
            answered = await broker.request(question, "questions", headers={"chat_id": "c1"}, timeout=60)
            print(await answered.decode())
            while "Order" not in (await seen.get()).labels:  # until the graph has what the tool found
                pass


if __name__ == "__main__":
    asyncio.run(main("Where is A1", "Where is B2"))
