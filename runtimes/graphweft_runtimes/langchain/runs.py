"""The open runs of LangChain, and the turns that they belong to.

LangChain reports each run to a callback handler, with its id and that of its parent: graphs, their nodes, and the tools
and models within. Middleware sees only agents, and misses their end if they fail, are cancelled, hand over or wait for
a person. ``Runs`` keeps the tree of runs, so that both refer to the same turn and each end is emitted once: by the run
of the graph if a handler sees it, otherwise by the middleware.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

from typing_extensions import Self

from graphweft.adapters.core import Adapter
from graphweft.adapters.events import PHASE_COMPLETE, WORKFLOW_ERROR
from graphweft.adapters.values import error_text
from graphweft_contracts.bounded_dict import BoundedDict
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_contracts.events import WorkflowError, WorkflowPhaseComplete, data_of
from graphweft_runtimes.langchain import values

_MAX_RUNS: Final = 50_000
"""Runs that are remembered. The end of a run may never be reported, for example if its thread is killed."""
_MAX_TURNS: Final = 10_000
"""Turns that are remembered while they wait for a person, or whose graph is not attached."""
_STEP: Final = "graph:step:"
"""The prefix of LangGraph's tag for the run of a node; runs inside a node lack it."""


@dataclass(slots=True, eq=False, kw_only=True)
class OpenTurn:
    """An agent's turn. ``run`` separates turns that the agent takes at the same time."""

    agent: str
    run: str
    variables: dict[str, Any]
    graph: OpenRun | None
    """The agent's graph; None if its end is not reported."""
    node: OpenRun | None = None
    """The node that requested context itself: the turn ends with it, unless it called tools."""
    waiting: set[str] = field(default_factory=set[str])
    """Open tool calls of the model's last answer."""
    to: str | None = None
    """The next agent once they have returned."""


@dataclass(slots=True, eq=False, kw_only=True)
class OpenRun:
    """An open run of LangChain. ``Runs`` sets the fields below ``around``."""

    id: Any
    name: str
    metadata: Mapping[str, Any]
    around: OpenRun | None
    step: int | None = None
    """For a node: the step of its graph."""
    turns: dict[str, OpenTurn] = field(default_factory=dict[str, OpenTurn])
    """For a graph: the turns of its agent, or of the agents whose context its nodes request."""
    tool: tuple[str, str] | None = None
    """For a tool whose events the handler emits: its name and the id of the call."""
    model: str | None = None
    """For a model call whose events the handler emits: the name of the model, which may be empty."""
    structured: bool = False
    """Whether the model answers with a schema, so that calls in its answer are not tool calls."""
    started_s: float = field(default_factory=SYSTEM_CLOCK.monotonic)
    asking: int = 0
    """For a node: open calls of models and tools whose events the middleware emits."""
    phase: str = ""
    """For a node of the outermost graph: the name of its phase."""
    phases: list[OpenRun] = field(default_factory=list["OpenRun"])
    """For a graph: the nodes of the latest step whose phase is open."""
    paused: bool = False
    """Whether it waits for a person, and continues in another run."""
    within: set[Any] = field(default_factory=set[Any])
    """For the outermost run: the ids of all open runs inside it."""
    variables: dict[str, Any] | None = None
    """For the outermost run: the context variables of its start event."""
    failure: int | None = None
    """For the outermost run: the identity of the last exception that a turn emitted."""

    @property
    def outermost(self) -> OpenRun:
        """The run at the root of the tree."""
        run = self
        while run.around is not None:
            run = run.around
        return run

    @property
    def node(self) -> OpenRun | None:
        """The run itself if it is a node, otherwise the node around it."""
        run: OpenRun | None = self
        while run is not None and run.step is None:
            run = run.around
        return run

    @property
    def namespace(self) -> str:
        """LangGraph's checkpoint namespace of a graph, which stays the same after a pause."""
        return str(self.metadata.get("langgraph_checkpoint_ns") or "")


class Runs:
    """Reports runs and turns to ``core``. ``bubble`` and ``parent_command`` are exceptions of LangGraph.

    Hold ``lock`` while you call methods other than ``get``. They may raise; callers keep errors from the runtime.
    """

    def __init__(self, core: Adapter, *, bubble: type[BaseException], parent_command: type[BaseException]) -> None:
        self.lock = threading.RLock()
        self._core = core
        self._bubble = bubble
        self._parent_command = parent_command
        self._runs: dict[Any, OpenRun] = {}
        self._outermost: Counter[tuple[str, str]] = Counter()
        self._paused: BoundedDict[tuple[str, str, str, str], OpenTurn] = BoundedDict(_MAX_TURNS)
        self._unattached: BoundedDict[tuple[str, str, str, str], OpenTurn] = BoundedDict(_MAX_TURNS)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the object itself: a copied agent, or its copied settings, shares the runs."""
        return self

    def __len__(self) -> int:
        """Return the number of open runs."""
        return len(self._runs)

    def get(self, run_id: Any) -> OpenRun | None:
        """Return the open run with this id."""
        return self._runs.get(run_id)

    def bubbles(self, error: BaseException) -> bool:
        """Return whether LangGraph raises the exception to hand over or to wait for a person."""
        return isinstance(error, self._bubble)

    # Runs

    def add(
        self, run_id: Any, around_id: Any, name: str, metadata: Mapping[str, Any] | None, *, outermost: bool = False
    ) -> OpenRun | None:
        """Add a run and return it. Return None for a known run: a handler may be called twice.

        A run without a known parent is added only if it may be the ``outermost`` one; otherwise it belongs to a run
        that has ended.
        """
        around = self._runs.get(around_id)
        if run_id in self._runs or (around is None and not outermost):
            return None
        run = OpenRun(id=run_id, name=name, metadata=metadata or {}, around=around)
        self._runs[run_id] = run
        if around is not None:
            run.outermost.within.add(run_id)
        if len(self._runs) > _MAX_RUNS:
            self.remove(next(iter(self._runs)))
        return run

    def remove(self, run_id: Any) -> OpenRun | None:
        """Remove an ended run, and with an outermost one all runs inside it, and return it."""
        run = self._runs.pop(run_id, None)
        if run is not None:
            run.outermost.within.discard(run_id)
            for within in run.within:
                self._runs.pop(within, None)
        return run

    def start_chain(
        self, run_id: Any, around_id: Any, name: str, tags: list[str] | None, metadata: Mapping[str, Any] | None
    ) -> None:
        """Start a graph, a node or another chain. The nodes of the outermost graph are its phases."""
        is_node = any(tag.startswith(_STEP) for tag in tags or ())
        run = self.add(run_id, around_id, name, metadata, outermost=not is_node)
        if run is None or run.around is None or not is_node:
            return
        graph = run.around
        run.step, run.phase = int(run.metadata.get("langgraph_step") or 0), name
        if graph.node is not None or graph.metadata.get("ls_integration") == "langchain_create_agent":
            return
        if graph.phases and graph.phases[0].step != run.step:
            for before in graph.phases:
                if before.phase != name:
                    data = data_of(WorkflowPhaseComplete, phase_name=before.phase, next_phase=name)
                    self._core.emit(self.begun(run, None), PHASE_COMPLETE, data)
            graph.phases.clear()
        graph.phases.append(run)

    def end_chain(self, run_id: Any, outputs: Any) -> None:
        """End a graph, a node or another chain that succeeded, or that waits for a person."""
        run = self.remove(run_id)
        if run is None:
            return
        if run.step is not None and run.around is not None:
            for turn in [turn for turn in run.around.turns.values() if turn.node is run and not turn.waiting]:
                self.end_turn(turn, values.response(outputs))
        for turn in list(run.turns.values()):
            if run.paused:
                self._pause(turn)
            else:
                self.end_turn(turn, values.response(outputs))
        if run.around is None:
            self._end_outermost(run, outputs)

    def fail_chain(self, run_id: Any, error: BaseException) -> None:
        """End a graph, a node or another chain that raised, also to hand over or to wait for a person."""
        run = self.remove(run_id)
        if run is None:
            return
        bubbles, hands_over = self.bubbles(error), isinstance(error, self._parent_command)
        turns = list(run.turns.values())
        if run.step is not None and run.around is not None and not bubbles:
            turns += [turn for turn in run.around.turns.values() if turn.node is run]
        for turn in turns:
            if hands_over:
                self.end_turn(turn, None)
            elif bubbles:
                self._pause(turn)
            else:
                self.fail_turn(turn, error)
        if run.around is None:
            run.paused |= bubbles and not hands_over
            self._end_outermost(run, None, None if bubbles else error)

    def pause(self, run_id: Any) -> None:
        """Mark a graph that waits for a person."""
        run = self._runs.get(run_id)
        if run is not None:
            run.paused = run.outermost.paused = True

    def begun(self, run: OpenRun, variables: Mapping[str, Any] | None) -> dict[str, Any]:
        """Start the outermost run once, and return its variables. App and chat stay those of its start.

        The run starts with its first event, because LangChain does not know the ids of a run at its start.
        """
        outermost = run.outermost
        if variables is None and outermost.variables is not None:
            return outermost.variables
        known = dict(variables) if variables is not None else values.context_variables({"metadata": run.metadata})
        if outermost.variables is None:
            outermost.variables = known
            self._outermost[_chat(known)] += 1
            self._core.start_run(known)
            return known
        pinned = {name: value for name, value in outermost.variables.items() if name in {"app_id", "chat_id"}}
        return {**outermost.variables, **known, **pinned}

    def _end_outermost(self, run: OpenRun, outputs: Any, error: BaseException | None = None) -> None:
        variables = self.begun(run, run.variables)
        chat = _chat(variables)
        self._outermost[chat] -= 1
        alone = self._outermost[chat] <= 0
        if alone:
            del self._outermost[chat]
        if run.paused and error is None:
            return
        if error is None:
            if alone:
                self._core.end_run(variables, outputs=values.response(outputs))
        elif alone:
            self._core.fail_run(variables, error)
        elif run.failure != id(error):  # failing the run would fail turns of other runs in the chat
            data = data_of(WorkflowError, error_type=type(error).__name__, error_message=error_text(error))
            self._core.emit(variables, WORKFLOW_ERROR, data)

    # Turns

    def turn(self, around_id: Any, agent: str, variables: Mapping[str, Any], namespace: str, *, asks: bool) -> OpenTurn:
        """Return the agent's turn in the graph around this node; a turn that waited for a person continues.

        ``namespace`` is the graph's. ``asks``: the node requests context itself, so the graph is not the agent's own.
        """
        run = self._runs.get(around_id)
        node = None if run is None else run.node
        graph = None if node is None else node.around
        if node is None or graph is None:  # the graph is not attached
            key = (*_chat(variables), namespace, agent)
            turn = self._unattached.get(key)
            if turn is None:
                turn = OpenTurn(agent=agent, run=namespace, variables=dict(variables), graph=None)
                self._unattached[key] = turn
            turn.variables = dict(variables)
            return turn
        known = self.begun(node, variables)
        turn = graph.turns.get(agent) or self._paused.pop((*_chat(known), graph.namespace, agent), None)
        if turn is None:
            turn = OpenTurn(agent=agent, run=uuid4().hex, variables=known, graph=graph)
        graph.turns[agent] = turn
        turn.graph, turn.variables = graph, known
        if asks:
            for other in list(graph.turns.values()):
                if other is not turn and other.node is not None and (other.node.step or 0) < (node.step or 0):
                    self.end_turn(other, None)
            turn.node = node
        elif graph.node is not None:
            graph.node.phase = agent
        return turn

    def turn_of(self, run: OpenRun, call_id: str | None = None) -> OpenTurn | None:
        """Return the turn of a run: the one that waits for the call, or the nearest around it."""
        node = run.node
        while node is not None and node.around is not None:
            turns = list(node.around.turns.values())
            if turns:
                mine = (turn for turn in turns if turn.node is node or call_id in turn.waiting)
                return next(mine, turns[-1])
            node = node.around.node
        return None

    def returned(self, turn: OpenTurn, call_id: str, to: str | None) -> None:
        """Record that a tool has returned. The hand-over happens once all calls of the model have returned."""
        turn.waiting.discard(call_id)
        turn.to = to or turn.to
        if turn.to is None or turn.waiting:
            return
        self._forget(turn)
        self._core.hand_over(turn.variables, turn.agent, turn.to, run=turn.run)
        place = None if turn.graph is None else turn.graph.node
        if place is not None and place.around is not None and place in place.around.phases:
            place.around.phases.remove(place)  # the hand-over ends the phase

    def end_turn(self, turn: OpenTurn, response: Any) -> None:
        """End the turn."""
        self._forget(turn)
        self._core.end_turn(turn.variables, turn.agent, run=turn.run, response=response)

    def fail_turn(self, turn: OpenTurn, error: BaseException) -> None:
        """Fail the turn. If a turn inside it emitted the same error, the end of the run fails this turn."""
        outermost = None if turn.graph is None else turn.graph.outermost
        self._forget(turn)
        if outermost is not None:
            if outermost.failure == id(error) and self._outermost[_chat(turn.variables)] <= 1:
                return
            outermost.failure = id(error)
        self._core.fail_turn(turn.variables, turn.agent, error, run=turn.run)

    def _pause(self, turn: OpenTurn) -> None:
        self._forget(turn)
        if turn.graph is not None:
            key = (*_chat(turn.variables), turn.graph.namespace, turn.agent)
            turn.graph = turn.node = None
            self._paused[key] = turn

    def _forget(self, turn: OpenTurn) -> None:
        if turn.graph is not None:
            turn.graph.turns.pop(turn.agent, None)
        else:
            self._unattached.pop((*_chat(turn.variables), turn.run, turn.agent), None)


def _chat(variables: Mapping[str, Any]) -> tuple[str, str]:
    return str(variables.get("app_id") or ""), str(variables.get("chat_id") or "")
