"""The callback handler for LangChain: it reports graphs, nodes, and calls outside of middleware to ``Runs``.

The handler is synchronous: for an asynchronous one, LangChain starts a loop and a thread in each synchronous call. It
runs inline, in the runtime's thread and order, and only does bookkeeping.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, ParamSpec, TypeVar

from graphweft.adapters.core import Adapter
from graphweft.adapters.values import about_model, error_text
from graphweft_runtimes.langchain import values
from graphweft_runtimes.langchain.runs import OpenRun, Runs

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

logger = logging.getLogger("graphweft.adapters")

_STRUCTURED: Final = "ls_structured_output_format"
"""The option of a model call that answers with a schema."""


def handler_of(base: Any, core: Adapter, runs: Runs) -> Any:
    """Return a handler of LangGraph's class ``base`` that reports to ``runs`` and ``core``."""
    kind: Any = type("GraphweftCallbackHandler", (_Callbacks, base), {})
    handler = kind()
    handler.core, handler.runs = core, runs
    return handler


def quietly(step: Callable[Arguments, Result]) -> Callable[Arguments, Result | None]:
    """Return ``step`` with errors suppressed: the runtime continues without its events."""

    @functools.wraps(step)
    def quiet(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result | None:
        try:
            return step(*arguments, **named)
        except Exception as error:  # the agent continues whatever happens here
            _warn_once(step.__name__, type(error).__name__)
            logger.debug("the adapter failed in %s", step.__name__, exc_info=error)
            return None

    return quiet


@functools.lru_cache(maxsize=1000)
def _warn_once(where: str, error: str) -> None:
    logger.warning("the adapter failed in %s with %s; the agent continues", where, error)


class _Callbacks:
    """The methods of LangChain's ``BaseCallbackHandler`` and LangGraph's ``GraphCallbackHandler``."""

    run_inline = True
    raise_error = False
    core: Adapter
    runs: Runs

    @quietly
    def on_chain_start(self, serialized: Any, inputs: Any, *, run_id: Any, **about: Any) -> None:
        with self.runs.lock:
            self.runs.start_chain(
                run_id, about.get("parent_run_id"), _name(serialized, about), about.get("tags"), about.get("metadata")
            )

    @quietly
    def on_chain_end(self, outputs: Any, *, run_id: Any, **_: Any) -> None:
        """It succeeded, or waits for a person."""
        with self.runs.lock:
            self.runs.end_chain(run_id, outputs)

    @quietly
    def on_chain_error(self, error: BaseException, *, run_id: Any, **_: Any) -> None:
        """It raised, was cancelled, or its stream was closed."""
        with self.runs.lock:
            self.runs.fail_chain(run_id, error)

    @quietly
    def on_interrupt(self, event: Any) -> None:
        """A graph waits for a person; ``on_chain_end`` follows."""
        with self.runs.lock:
            self.runs.pause(event.run_id)

    # Tools

    @quietly
    def on_tool_start(self, serialized: Any, input_str: Any, *, run_id: Any, **about: Any) -> None:
        with self.runs.lock:
            run = self._add(run_id, serialized, about)
            if run is None or _in_middleware(run):
                return
            call_id = str(about.get("tool_call_id") or run_id)
            run.tool = (run.name, call_id)
            arguments = about.get("inputs")
            agent, key = self._caller(run, call_id)
            self.core.start_tool(
                self._variables(run), run.name, call_id,
                arguments=input_str if arguments is None else arguments, agent=agent, run=key,
            )  # fmt: skip

    @quietly
    def on_tool_end(self, output: Any, *, run_id: Any, **_: Any) -> None:
        """It returned. A failure that the tool handles itself is a message with an error status."""
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
        """It raised. A tool that waits for a person is called again later."""
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
        with self.runs.lock:
            run = self._add(run_id, serialized, about)
            if run is not None and not _in_middleware(run):
                run.model = str(run.metadata.get("ls_model_name") or "")
                run.structured = _STRUCTURED in (about.get("options") or {})

    on_llm_start = on_chat_model_start

    @quietly
    def on_llm_end(self, response: Any, *, run_id: Any, **_: Any) -> None:
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
        with self.runs.lock:
            run = self.runs.remove(run_id)
            if run is not None and run.model is not None:
                self._model_call(run, False, about_model(None, error=error))

    def _model_call(self, run: OpenRun, success: bool, about: Mapping[str, Any]) -> None:
        agent, key = self._caller(run)
        more = {**about_model(run.started_s, model=run.model), **about}
        self.core.model_call(self._variables(run), agent, run=key, success=success, about=more)

    # Retrievers: calls inside them are part of the run

    @quietly
    def on_retriever_start(self, serialized: Any, query: Any, *, run_id: Any, **about: Any) -> None:
        with self.runs.lock:
            self._add(run_id, serialized, about)

    @quietly
    def on_retriever_end(self, documents: Any, *, run_id: Any, **_: Any) -> None:
        with self.runs.lock:
            self.runs.remove(run_id)

    on_retriever_error = on_retriever_end

    def _add(self, run_id: Any, serialized: Any, about: Mapping[str, Any]) -> OpenRun | None:
        return self.runs.add(run_id, about.get("parent_run_id"), _name(serialized, about), about.get("metadata"))

    def _variables(self, run: OpenRun) -> Mapping[str, Any]:
        return self.runs.begun(run, None)

    def _caller(self, run: OpenRun, call_id: str | None = None) -> tuple[str, str]:
        turn = self.runs.turn_of(run, call_id)
        if turn is not None:
            return turn.agent, turn.run
        node = run.node
        return str(run.metadata.get("lc_agent_name") or (run.outermost.name if node is None else node.phase)), ""

    def _returned(self, run: OpenRun, call_id: str) -> None:
        turn = self.runs.turn_of(run, call_id)
        if turn is not None:
            turn.waiting.discard(call_id)


def _in_middleware(run: OpenRun) -> bool:
    """Return whether the middleware emits its events."""
    return run.around is not None and run.around.asking > 0


def _name(serialized: Any, about: Mapping[str, Any]) -> str:
    described: Mapping[str, Any] = serialized or {}
    return str(about.get("name") or described.get("name") or "unknown")
