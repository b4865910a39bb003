"""Which runs of LangChain are under way, what they are, and whose turns they are part of.

LangChain tells a callback handler of each run, with its id and that of the run around it: of graphs, of their nodes,
and of the tools and models within. Middleware is told of agents only, and not of their ends where they fail, are
cancelled, hand over or wait for a person. ``Runs`` keeps the tree of runs, so that both say the same turn, and each end
is told once: by the graph's run where a handler sees it, else by what middleware sees.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self
from uuid import uuid4

from graphweft.adapters import langchain_values as values
from graphweft.adapters.core import Adapter
from graphweft.adapters.values import error_text
from graphweft.adapters.vocabulary import PHASE_COMPLETE, WORKFLOW_ERROR

__all__ = ("OpenTurn", "Run", "Runs")

_RUNS: Final = 50_000
"""Runs that are remembered, the oldest go first: an end may never be told, when a thread was killed for example."""
_TURNS: Final = 10_000
"""Turns that wait for a person, or whose graph nobody watches; the oldest go first."""
_STEP: Final = "graph:step:"
"""How LangGraph tags the run of a node, and no run within."""


@dataclass(slots=True, eq=False, kw_only=True)
class OpenTurn:
    """An agent's turn; ``run`` tells it apart from others that the agent takes at the same time."""

    agent: str
    run: str
    variables: dict[str, Any]
    graph: Run | None
    """The agent's graph; None where nobody tells of its end."""
    node: Run | None = None
    """The node that asked for context by itself: the turn ends with it, unless it called tools."""
    waiting: set[str] = field(default_factory=set[str])
    """Tool calls of the model's last answer that have not returned."""
    to: str | None = None
    """Who goes on once they have."""


@dataclass(slots=True, eq=False, kw_only=True)
class Run:
    """One run that LangChain told of and that has not ended. Everything below ``around`` is for ``Runs`` to set."""

    id: Any
    name: str
    metadata: Mapping[str, Any]
    around: Run | None
    step: int | None = None
    """The step of its graph, for a node; None for all others."""
    turns: dict[str, OpenTurn] = field(default_factory=dict[str, OpenTurn])
    """Of a graph: the turns of its agent, or of the agents that its nodes ask for context for."""
    tool: tuple[str, str] | None = None
    """The name and id of the call, for a tool that is told of here."""
    model: str | None = None
    """The model's name, perhaps empty, for a model call that is told of here."""
    structured: bool = False
    """The model was given a schema to answer by, so calls in its answer are no calls of tools."""
    started_s: float = field(default_factory=time.monotonic)
    asking: int = 0
    """Of a node: how many models and tools middleware has under way here and tells of itself."""
    phase: str = ""
    """Of a node of the outermost graph: the name of its phase."""
    phases: list[Run] = field(default_factory=list["Run"])
    """Of a graph: the nodes of the latest step whose phase is not told to be over."""
    paused: bool = False
    """It waits for a person, and goes on with another run."""
    within: set[Any] = field(default_factory=set[Any])
    """Of the outermost run: the ids of all runs within it that are under way."""
    variables: dict[str, Any] | None = None
    """Of the outermost run: those that its start was told with."""
    failure: int | None = None
    """Of the outermost run: the identity of the exception that a turn has told of last."""

    @property
    def outermost(self) -> Run:
        """The run that no other one is around."""
        run = self
        while run.around is not None:
            run = run.around
        return run

    @property
    def node(self) -> Run | None:
        """The node that it is, or is within."""
        run: Run | None = self
        while run is not None and run.step is None:
            run = run.around
        return run

    @property
    def namespace(self) -> str:
        """What LangGraph calls the place of a graph: the same when it goes on after a pause."""
        return str(self.metadata.get("langgraph_checkpoint_ns") or "")


class Runs:
    """Tells ``core`` of runs and turns. Safe to use from several threads; ``parent_command`` is LangGraph's exception.

    Methods may raise; who calls them sees to it that the runtime does not hear of that.
    """

    def __init__(self, core: Adapter, *, bubble: type[BaseException], parent_command: type[BaseException]) -> None:
        self.lock = threading.RLock()
        self._core = core
        self._bubble = bubble
        self._parent_command = parent_command
        self._runs: dict[Any, Run] = {}
        self._outermost: Counter[tuple[str, str]] = Counter()
        self._paused: dict[tuple[str, str, str, str], OpenTurn] = {}
        self._loose: dict[tuple[str, str, str, str], OpenTurn] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return these: a copy of an agent, or of its settings, is of the same runs."""
        return self

    def __len__(self) -> int:
        """Return how many runs are under way."""
        return len(self._runs)

    def get(self, run_id: Any) -> Run | None:
        """Return the run of that id, if it is under way."""
        return self._runs.get(run_id)

    def bubbles(self, error: BaseException) -> bool:
        """Return whether the exception is LangGraph's own way to hand over or to wait for a person."""
        return isinstance(error, self._bubble)

    # Runs

    def add(
        self, run_id: Any, around_id: Any, name: str, metadata: Mapping[str, Any] | None, *, outermost: bool = False
    ) -> Run | None:
        """Add a run, and return it; None for one that is known, for a handler may be told twice.

        One around which no known run is can only be the outermost one, where it may be that. All others are what is
        still at work for a run that has ended.
        """
        around = self._runs.get(around_id)
        if run_id in self._runs or (around is None and not outermost):
            return None
        run = Run(id=run_id, name=name, metadata=metadata or {}, around=around)
        self._runs[run_id] = run
        if around is not None:
            run.outermost.within.add(run_id)
        if len(self._runs) > _RUNS:
            self.remove(next(iter(self._runs)))
        return run

    def remove(self, run_id: Any) -> Run | None:
        """Remove a run that has ended, with all that is within an outermost one, and return it."""
        run = self._runs.pop(run_id, None)
        if run is not None:
            run.outermost.within.discard(run_id)
            for within in run.within:
                self._runs.pop(within, None)
        return run

    def start_chain(
        self, run_id: Any, around_id: Any, name: str, tags: list[str] | None, metadata: Mapping[str, Any] | None
    ) -> None:
        """A graph, a node or anything else begins; the nodes of the outermost graph are its phases."""
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
                    data = {"phase_name": before.phase, "next_phase": name}
                    self._core.tell(self.begun(run, None), PHASE_COMPLETE, data)
            graph.phases.clear()
        graph.phases.append(run)

    def end_chain(self, run_id: Any, outputs: Any) -> None:
        """A graph, a node or anything else has ended well, or waits for a person."""
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
        """A graph, a node or anything else has raised: a failure, or how LangGraph hands over and waits."""
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
        """The graph waits for a person."""
        run = self._runs.get(run_id)
        if run is not None:
            run.paused = run.outermost.paused = True

    def begun(self, run: Run, variables: Mapping[str, Any] | None) -> dict[str, Any]:
        """Tell once that the outermost run has begun, and return its variables: its ids stay those of its start.

        It is told late, with what else is told first, for LangChain does not say the ids of a run at its start.
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

    def _end_outermost(self, run: Run, outputs: Any, error: BaseException | None = None) -> None:
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
        elif run.failure != id(error):  # to fail the run would fail the turns of the other ones in the chat
            told = {"error_type": type(error).__name__, "error_message": error_text(error)}
            self._core.tell(variables, WORKFLOW_ERROR, told)

    # Turns

    def turn(self, around_id: Any, agent: str, variables: Mapping[str, Any], namespace: str, *, asks: bool) -> OpenTurn:
        """Return the agent's turn in the graph around the node of that id, where its graph waited for a person too.

        ``namespace`` is the graph's; ``asks``: the node asks by itself, and the graph is not the agent's own.
        """
        run = self._runs.get(around_id)
        node = None if run is None else run.node
        graph = None if node is None else node.around
        if node is None or graph is None:  # nobody watches the graph
            key = (*_chat(variables), namespace, agent)
            turn = self._loose.get(key)
            if turn is None:
                turn = OpenTurn(agent=agent, run=namespace, variables=dict(variables), graph=None)
                _keep(self._loose, key, turn)
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

    def turn_of(self, run: Run, call_id: str | None = None) -> OpenTurn | None:
        """Return whose turn a run is part of: the one that waits for the call, or the nearest around it."""
        node = run.node
        while node is not None and node.around is not None:
            turns = list(node.around.turns.values())
            if turns:
                mine = (turn for turn in turns if turn.node is node or call_id in turn.waiting)
                return next(mine, turns[-1])
            node = node.around.node
        return None

    def returned(self, turn: OpenTurn, call_id: str, to: str | None) -> None:
        """A tool has returned, and may hand over: done when all of the model's calls have returned."""
        turn.waiting.discard(call_id)
        turn.to = to or turn.to
        if turn.to is None or turn.waiting:
            return
        self._forget(turn)
        self._core.hand_over(turn.variables, turn.agent, turn.to, run=turn.run)
        place = None if turn.graph is None else turn.graph.node
        if place is not None and place.around is not None and place in place.around.phases:
            place.around.phases.remove(place)  # told by handing over

    def end_turn(self, turn: OpenTurn, response: Any) -> None:
        """The agent has answered."""
        self._forget(turn)
        self._core.end_turn(turn.variables, turn.agent, run=turn.run, response=response)

    def fail_turn(self, turn: OpenTurn, error: BaseException) -> None:
        """The turn has failed. One around it is left to its run's end, which tells the same failure no second time."""
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
            _keep(self._paused, key, turn)

    def _forget(self, turn: OpenTurn) -> None:
        if turn.graph is not None:
            turn.graph.turns.pop(turn.agent, None)
        else:
            self._loose.pop((*_chat(turn.variables), turn.run, turn.agent), None)


def _chat(variables: Mapping[str, Any]) -> tuple[str, str]:
    return str(variables.get("app_id") or ""), str(variables.get("chat_id") or "")


def _keep(kept: dict[tuple[str, str, str, str], OpenTurn], key: tuple[str, str, str, str], turn: OpenTurn) -> None:
    kept.pop(key, None)
    kept[key] = turn
    if len(kept) > _TURNS:
        del kept[next(iter(kept))]
