"""Named indexes of Neo4j searched through neo4j-graphrag's own retrievers, as its users know them.

``Searcher`` does not need it: it gives the same order on FalkorDB and Neo4j, has a deadline for every step, and can
search within a scope. These retrievers know scopes for vectors only, rank as the server's index does, and block; here
they run in threads, read only, with a time limit that the server keeps, and no more of them at once than there are
threads. Importing this module needs the extra ``graphrag``.
"""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, Self

import neo4j
from neo4j.exceptions import DriverError, Neo4jError

from graphweft_contracts import GraphweftError, InvalidSettings, QueryFailed
from graphweft_contracts.search import SearchQuery
from graphweft_rules.terms import STOP_WORDS
from graphweft_workers.embedding.protocol import Embedder
from graphweft_workers.graph.limits import check_rows
from graphweft_workers.graph.neo4j_errors import translate
from graphweft_workers.graph.neo4j_url import split_neo4j_url
from graphweft_workers.graph.store import Table
from graphweft_workers.retrieval.search import Found

# By name, because type checks must pass where this extra is not installed.
_retrievers: Any = importlib.import_module("neo4j_graphrag.retrievers")
_types: Any = importlib.import_module("neo4j_graphrag.types")
_base: Any = importlib.import_module("neo4j_graphrag.retrievers.base")

_THREADS: Final = 8
_KEPT: Final = 64
"""Retrievers that are kept: making one asks the server twice."""
_CONNECT_S: Final = 5.0
_GRACE_S: Final = 0.5
_EMBEDDING: Final = 0.5
_FIRST: Final = ("text", "score")
_WORD: Final = re.compile(r"[^\W_]+")
_until: contextvars.ContextVar[float] = contextvars.ContextVar("graphweft_graphrag_until")


class FulltextRetriever(_base.Retriever):  # type: ignore[misc]
    """Searches a fulltext index, which neo4j-graphrag has no retriever for; made and used like its others."""

    def __init__(self, driver: neo4j.Driver, index_name: str, retrieval_query: str | None = None) -> None:
        super().__init__(driver)  # pyright: ignore[reportUnknownMemberType]
        self.index_name = index_name
        self._tail = retrieval_query or "RETURN node, score ORDER BY score DESC"

    def get_search_results(self, query_text: str, top_k: int = 5, query_params: dict[str, Any] | None = None) -> Any:
        """Return the records of the ``top_k`` best nodes, scored as the server does."""
        statement = (
            "CALL db.index.fulltext.queryNodes($index_name, $query_text, {limit: $top_k}) YIELD node, score "
            f"WITH node, score ORDER BY score DESC\n{self._tail}"
        )
        params = {**(query_params or {}), "index_name": self.index_name, "query_text": query_text, "top_k": top_k}
        found = self.driver.execute_query(statement, params, routing_=neo4j.RoutingControl.READ)
        return _types.RawSearchResult(records=found.records)


class GraphragSearcher:
    """Searches one Neo4j database; an async context manager.

    It takes ``VectorRetriever`` or ``HybridRetriever``, with a retrieval query ``VectorCypherRetriever`` or
    ``HybridCypherRetriever``, and for words alone our ``FulltextRetriever``. Scores are theirs: of vectors
    (1 + cosine) / 2, of words the server's own, of hybrid searches the larger of the two after each was divided by the
    highest of its list.
    """

    def __init__(self, url: str, embedder: Embedder | None = None, *, threads: int = _THREADS) -> None:
        """``url`` is that of the settings, without ``{app_id}``; the embedder stays open."""
        parts = split_neo4j_url(url)
        if not parts.one_server:
            raise InvalidSettings("neo4j-graphrag's retrievers search one database: give a URL without {app_id}")
        make: Any = neo4j.GraphDatabase
        self._driver: neo4j.Driver = make.driver(
            parts.uri,
            auth=(parts.user, parts.password) if parts.user else None,
            database=parts.database or None,
            connection_timeout=_CONNECT_S,
            connection_acquisition_timeout=_CONNECT_S,
            max_transaction_retry_time=0.0,
            max_connection_pool_size=threads,
        )
        _bound(self._driver)
        self._embedder = embedder
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="graphweft-graphrag")
        self._made: OrderedDict[tuple[str | None, ...], Any] = OrderedDict()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Wait for what is running, at most for its time limit, and close the connections."""
        await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)
        await asyncio.to_thread(self._driver.close)

    async def search(self, query: SearchQuery, *, timeout_s: float) -> Found:
        """Search a named index. Raises as ``Searcher.search`` does, and ``QueryFailed`` for memories."""
        kind = query.index_type or "vector"
        if query.memory is not None or query.index_name is None:
            raise QueryFailed("neo4j-graphrag's retrievers search named indexes: give index_name, and no memory")
        if kind != "fulltext" and self._embedder is None:
            msg = f"embedder is required when index_type={kind!r}"
            raise InvalidSettings(msg)
        until = time.monotonic() + timeout_s
        words = _words(query)
        if not query.text.strip():
            return Found(table=Table(columns=_FIRST, rows=()))
        vector, degraded = await self._embedded(query.text, timeout_s) if kind != "fulltext" else (None, None)
        if degraded and kind == "vector":
            return Found(table=Table(columns=_FIRST, rows=()), degraded=f"{degraded}; nothing was searched")
        if kind == "hybrid" and (vector is None or not words):
            kind = "fulltext" if vector is None else "vector"
            degraded = f"{degraded}; words alone were searched" if degraded else None
        if kind == "fulltext" and not words:
            return Found(table=Table(columns=_FIRST, rows=()), degraded=degraded)
        records = await self._in_thread(until, lambda: self._records(kind, query, vector, words))
        check_rows(len(records))
        return Found(table=_table(records, enriched=query.retrieval_query is not None), degraded=degraded)

    async def _embedded(self, text: str, timeout_s: float) -> tuple[list[float] | None, str | None]:
        assert self._embedder is not None
        try:
            async with asyncio.timeout(timeout_s * _EMBEDDING):
                [vector] = await self._embedder.embed([text])
        except TimeoutError:
            return None, f"the embedder gave no vector within {timeout_s * _EMBEDDING:.3f} s"
        except GraphweftError as error:
            return None, str(error)
        except Exception as error:  # noqa: BLE001 - the user's own, and must not end the search
            return None, f"the embedder failed: {type(error).__name__}"
        return vector, None

    async def _in_thread[Result](self, until: float, work: Callable[[], Result]) -> Result:
        context = contextvars.copy_context()
        context.run(_until.set, until)
        running = asyncio.get_running_loop().run_in_executor(self._pool, context.run, work)
        try:
            async with asyncio.timeout(until - time.monotonic() + _GRACE_S):
                return await running
        except TimeoutError as error:
            raise QueryFailed("no answer in time", code="timeout") from error
        except (Neo4jError, DriverError, OSError) as error:
            raise translate(error) from error
        except GraphweftError:
            raise
        except Exception as error:  # for an index that is not there neo4j-graphrag raises Exception itself
            raise QueryFailed(f"neo4j-graphrag refuses the search: {error}") from error

    def _records(self, kind: str, query: SearchQuery, vector: list[float] | None, words: str) -> Sequence[Any]:
        asked: dict[str, Any] = {"top_k": query.top_k}
        if kind != "vector":
            asked["query_text"] = words
        if kind != "fulltext":
            asked["query_vector"] = vector
        if query.retrieval_query is not None:
            asked["query_params"] = query.params
        records: Sequence[Any] = self._retriever(kind, query).get_search_results(**asked).records
        return records

    def _retriever(self, kind: str, query: SearchQuery) -> Any:
        retrieval = query.retrieval_query
        words = query.fulltext_index_name if query.index_type == "hybrid" else query.index_name
        key = (kind, query.index_name, words, retrieval)
        made = self._made.pop(key, None)
        if made is None:
            more = () if retrieval is None else (retrieval,)
            if kind == "fulltext":
                made = FulltextRetriever(self._driver, str(words), retrieval)
            elif kind == "vector":
                name = "VectorRetriever" if retrieval is None else "VectorCypherRetriever"
                made = getattr(_retrievers, name)(self._driver, query.index_name, *more)
            else:
                name = "HybridRetriever" if retrieval is None else "HybridCypherRetriever"
                made = getattr(_retrievers, name)(self._driver, query.index_name, words, *more)
        self._made[key] = made
        while len(self._made) > _KEPT:
            self._made.popitem(last=False)
        return made


def _bound(driver: neo4j.Driver) -> None:
    """Let each query of a driver only read, and end at the search's time limit: retrievers say nothing of time."""
    plain: Any = driver.execute_query

    def execute_query(statement: Any, *args: Any, **kwargs: Any) -> Any:
        left_s = _until.get() - time.monotonic()
        if left_s <= 0:
            raise QueryFailed("no answer in time", code="timeout")
        make: Any = neo4j.Query
        return plain(make(statement, timeout=left_s), *args, **{**kwargs, "routing_": neo4j.RoutingControl.READ})

    driver.execute_query = execute_query  # type: ignore[method-assign, assignment]


def _words(query: SearchQuery) -> str:
    """Return the words of a question as Lucene takes them: no operators, and no stop words where there are others."""
    words = list(dict.fromkeys(_WORD.findall(query.text.lower())))[:64]
    wanted = [word for word in words if word not in STOP_WORDS] if query.filter_stop_words else words
    return " ".join(wanted or words)


def _table(records: Sequence[Any], *, enriched: bool) -> Table:
    if not records:
        return Table(columns=_FIRST, rows=())
    if not enriched:
        return Table(columns=_FIRST, rows=tuple((record["node"].get("text"), record["score"]) for record in records))
    names = list(records[0].keys())
    missing = [name for name in _FIRST if name not in names]
    if missing:
        raise QueryFailed(f"the retrieval query must return {' and '.join(missing)} too")
    columns = (*_FIRST, *(name for name in names if name not in _FIRST))
    return Table(columns=columns, rows=tuple(tuple(record[name] for name in columns) for record in records))
