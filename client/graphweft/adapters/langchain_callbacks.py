"""What LangChain tells a callback handler, handed to ``Runs``: graphs, nodes, and what no middleware tells of.

The handler is not an asynchronous one: LangChain would give it a loop and a thread of its own in each synchronous call.
It runs inline, in the runtime's thread and order, and only keeps books.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from graphweft.adapters import langchain_values as values
from graphweft.adapters.core import Adapter
from graphweft.adapters.langchain_runs import Run, Runs
from graphweft.adapters.values import error_text, ms_since

__all__ = ("handler_of", "quietly")

logger = logging.getLogger("graphweft.adapters")

_STRUCTURED: Final = "ls_structured_output_format"
"""The option of a model call that is to answer by a schema."""


def handler_of(base: Any, core: Adapter, runs: Runs) -> Any:
    """Return a handler of LangGraph's class ``base`` that tells ``runs`` and ``core``."""
    kind: Any = type("GraphweftCallbackHandler", (_Callbacks, base), {})
    handler = kind()
    handler.core, handler.runs = core, runs
    return handler


def quietly[**Arguments, Result](step: Callable[Arguments, Result]) -> Callable[Arguments, Result | None]:
    """Return ``step`` as one that does not raise: the runtime goes on without what it would have told."""

    @functools.wraps(step)
    def quiet(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result | None:
        try:
            return step(*arguments, **named)
        except Exception as error:  # the agent's turn goes on whatever happens here
            _say_once(step.__name__, type(error).__name__)
            logger.debug("the adapter failed in %s", step.__name__, exc_info=error)
            return None

    return quiet


@functools.lru_cache(maxsize=1000)
def _say_once(where: str, error: str) -> None:
    logger.warning("the adapter failed in %s with %s; the agent goes on", where, error)


class _Callbacks:
    """The methods of LangChain's ``BaseCallbackHandler`` and LangGraph's ``GraphCallbackHandler``."""

    run_inline = True
    raise_error = False
    core: Adapter
    runs: Runs

    @quietly
    def on_chain_start(self, serialized: Any, inputs: Any, *, run_id: Any, **about: Any) -> None:
        """A graph, a node or anything else begins."""
        with self.runs.lock:
            self.runs.start_chain(
                run_id, about.get("parent_run_id"), _name(serialized, about), about.get("tags"), about.get("metadata")
            )

    @quietly
    def on_chain_end(self, outputs: Any, *, run_id: Any, **_: Any) -> None:
        """It has ended well, or waits for a person."""
        with self.runs.lock:
            self.runs.end_chain(run_id, outputs)

    @quietly
    def on_chain_error(self, error: BaseException, *, run_id: Any, **_: Any) -> None:
        """It has raised, was cancelled, or its stream was closed."""
        with self.runs.lock:
            self.runs.fail_chain(run_id, error)

    @quietly
    def on_interrupt(self, event: Any) -> None:
        """A graph waits for a person; its end, as if it had ended well, comes next."""
        with self.runs.lock:
            self.runs.pause(event.run_id)

    # Tools

    @quietly
    def on_tool_start(self, serialized: Any, input_str: Any, *, run_id: Any, **about: Any) -> None:
        """A tool is about to be called, in a node, or by another tool."""
        with self.runs.lock:
            run = self._add(run_id, serialized, about)
            if run is None or _seen(run):
                return
            call_id = str(about.get("tool_call_id") or run_id)
            run.tool = (run.name, call_id)
            arguments = about.get("inputs")
            agent, key = self._whose(run, call_id)
            self.core.start_tool(
                self._variables(run), run.name, call_id,
                arguments=input_str if arguments is None else arguments, agent=agent, run=key,
            )  # fmt: skip

    @quietly
    def on_tool_end(self, output: Any, *, run_id: Any, **_: Any) -> None:
        """It has returned; a failure that the tool handles by itself is a message that says so."""
        with self.runs.lock:
            run = self.runs.remove(run_id)
            if run is not None and run.tool is not None:
                tool, call_id = run.tool
                self._returned(run, call_id)
                result = values.tool_result(output, call_id)
                self.core.end_tool(
                    self._variables(run), tool, call_id,
                    result=result.value, success=result.success, error=result.error,
                )  # fmt: skip

    @quietly
    def on_tool_error(self, error: BaseException, *, run_id: Any, **_: Any) -> None:
        """It has raised; one that waits for a person is called once more later."""
        with self.runs.lock:
            run = self.runs.remove(run_id)
            if run is not None and run.tool is not None and not self.runs.bubbles(error):
                tool, call_id = run.tool
                self._returned(run, call_id)
                self.core.end_tool(
                    self._variables(run), tool, call_id, success=False, error=error_text(error)
                )  # fmt: skip

    # Models

    @quietly
    def on_chat_model_start(self, serialized: Any, messages: Any, *, run_id: Any, **about: Any) -> None:
        """A model is asked."""
        with self.runs.lock:
            run = self._add(run_id, serialized, about)
            if run is not None and not _seen(run):
                run.model = str(run.metadata.get("ls_model_name") or "")
                run.structured = _STRUCTURED in (about.get("options") or {})

    on_llm_start = on_chat_model_start

    @quietly
    def on_llm_end(self, response: Any, *, run_id: Any, **_: Any) -> None:
        """It has answered."""
        with self.runs.lock:
            run = self.runs.remove(run_id)
            if run is None or run.model is None:
                return
            message = None
            with contextlib.suppress(Exception):
                message = response.generations[0][0].message
            answer = values.answer([message])
            turn = self.runs.turn_of(run)
            if turn is not None and turn.node is not None and turn.node is run.node:
                turn.waiting = set() if run.structured else answer.calls
            self._model_call(run, True, answer.about)

    @quietly
    def on_llm_error(self, error: BaseException, *, run_id: Any, **_: Any) -> None:
        """It has failed."""
        with self.runs.lock:
            run = self.runs.remove(run_id)
            if run is not None and run.model is not None:
                self._model_call(run, False, {"error_type": type(error).__name__})

    def _model_call(self, run: Run, success: bool, about: Mapping[str, Any]) -> None:
        agent, key = self._whose(run)
        more = {"duration_ms": ms_since(run.started_s), **about}
        if run.model:
            more.setdefault("model", run.model)
        self.core.model_call(self._variables(run), agent, run=key, success=success, about=more)

    # Retrievers: what is called within them is part of the run

    @quietly
    def on_retriever_start(self, serialized: Any, query: Any, *, run_id: Any, **about: Any) -> None:
        """Documents are looked up."""
        with self.runs.lock:
            self._add(run_id, serialized, about)

    @quietly
    def on_retriever_end(self, documents: Any, *, run_id: Any, **_: Any) -> None:
        """They were found, or not."""
        with self.runs.lock:
            self.runs.remove(run_id)

    on_retriever_error = on_retriever_end

    def _add(self, run_id: Any, serialized: Any, about: Mapping[str, Any]) -> Run | None:
        return self.runs.add(run_id, about.get("parent_run_id"), _name(serialized, about), about.get("metadata"))

    def _variables(self, run: Run) -> Mapping[str, Any]:
        return self.runs.begun(run, None)

    def _whose(self, run: Run, call_id: str | None = None) -> tuple[str, str]:
        turn = self.runs.turn_of(run, call_id)
        if turn is not None:
            return turn.agent, turn.run
        node = run.node
        return str(run.metadata.get("lc_agent_name") or (run.outermost.name if node is None else node.phase)), ""

    def _returned(self, run: Run, call_id: str) -> None:
        turn = self.runs.turn_of(run, call_id)
        if turn is not None:
            turn.waiting.discard(call_id)


def _seen(run: Run) -> bool:
    """Return whether middleware tells of it."""
    return run.around is not None and run.around.asking > 0


def _name(serialized: Any, about: Mapping[str, Any]) -> str:
    described: Mapping[str, Any] = serialized or {}
    return str(about.get("name") or described.get("name") or "unknown")
