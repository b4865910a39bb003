"""Builds an app's graph again from the log, beside the live one, and compares the two.

The live graph is only read, unless the two are swapped. The new one follows the rules that were active at each place
of the log, or one rule set at all places; see ``replay``. Before a graph of one rule set takes the place of the live
one, the log says so; see ``restatement``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from graphweft_contracts import GraphUnavailable, InvalidSettings
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.rules_log import Activation, newest, restated_scope
from graphweft_rules import RuleSet
from graphweft_workers.archive.joins import has_rebuilt, to_rebuild
from graphweft_workers.archive.log_gaps import LogGap
from graphweft_workers.archive.preludes import Prelude, is_of_prelude
from graphweft_workers.engine.apply.app_queue import State
from graphweft_workers.engine.failures.letters_after_erasures import LettersAfterErasures
from graphweft_workers.engine.log.ledger_reader import ledger_by_other_rules
from graphweft_workers.engine.plan.digest import Digest, read_digest
from graphweft_workers.engine.plan.graph_marks import has_plan, is_loading, is_sealed
from graphweft_workers.ports.dead_letters import put_letters
from graphweft_workers.ports.graph_basis import GraphBasis, given_basis, logged_basis, read_basis, write_basis
from graphweft_workers.ports.graph_store import START, GraphStore
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.ports.purges import Purge, needed_basis, put_purge
from graphweft_workers.replay.app_log import AppLog
from graphweft_workers.replay.graph_losses import GraphLosses
from graphweft_workers.replay.graphs_lease import GraphsLease
from graphweft_workers.replay.histories import replay_preludes
from graphweft_workers.replay.missing_nodes import missing_nodes, node_keys
from graphweft_workers.replay.replay import Replay, ReplayStep, failed_letters
from graphweft_workers.replay.restatement import LetterCounts, Restatement
from graphweft_workers.replay.restoring import SnapshotSource
from graphweft_workers.replay.second_queries import check_second_queries, rule_sets
from graphweft_workers.replay.swap import GraphSwap, move
from graphweft_workers.rule_sets.active_rules import ActiveRules, FixedRules
from graphweft_workers.support.timing import TIMING, Timing

_ROUNDS: Final = 20
"""Attempts to find the live graph at rest."""
_RESTATEMENTS: Final = 5
"""Attempts to restate the past while nobody retries its dead letters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestComparison:
    """The digests of both graphs at the same place of the log."""

    live: Digest
    rebuilt: Digest
    before: str = ""
    """What the live graph is from before, if it is not of now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestatementResult:
    """The restatement in the log, and how the dead letters changed."""

    activation: Activation
    letters: LetterCounts


class LogLost(InvalidSettings):
    """A graph that is made of the log would lack nodes of the live one. Say how to accept that."""


class Rebuild:
    """Rebuilds one app's graph. The creator closes the bus and the stores."""

    def __init__(
        self,
        log: AppLog,
        graph: GraphStore,
        rules: ActiveRules,
        *,
        given: RuleSet | None = None,
        tell: Callable[[Mapping[int, ReplayStep]], None] = lambda _: None,
        restoring: SnapshotSource | None = None,
        erasing: int | None = None,
        lease: GraphsLease | None = None,
        clock: Clock = SYSTEM_CLOCK,
        timing: Timing = TIMING,
    ) -> None:
        """``graph`` is the store of the new graph; ``tell`` gets the progress of all partitions after each batch.

        With ``given``, all events follow this rule set instead of ``rules``, the ones that the log activates, and no
        ``restoring`` is used. ``erasing`` is for an erasure alone: ``Erasures.count`` when it has ended. The caller
        holds ``lease``; without one, as where only the archive is read, the graph alone refuses a second writer.
        """
        self._erasing = erasing
        self._lease = lease
        self._clock = clock
        self._timing = timing
        self._log = log
        self._live = log.live
        self._graph = graph
        self._app_id = log.app_id
        self._tell = tell
        self._rules = rules
        self._given = given
        self._replay = (
            Replay(log.bus, graph, rules, log.app_id, restoring=restoring)
            if given is None
            else Replay(log.bus, graph, FixedRules(given), log.app_id, passed_over=ledger_by_other_rules)
        )
        self._preludes: list[Prelude] = []
        self._after_preludes = False
        """Whether the new graph holds them."""
        self._run_id = ""
        self._basis = GraphBasis()
        self._new = False
        self.continued = False
        """Whether an earlier rebuild has left something in the new graph."""
        self.restored = 0
        """Events with mutations that came from a snapshot."""
        self.gaps: Sequence[LogGap] = ()
        """What the log lacks, and somebody has accepted as lost; of ``begin``."""
        self.done: dict[int, ReplayStep] = {}
        """How far each partition is, and each one of a prelude, under the number of its checkpoint."""

    async def begin(self, *, resume: bool, swap: bool = False, kept: bool = False) -> None:
        """Check that the log is complete and that the new graph is new; with ``resume``, that it can be continued.

        With ``swap``, check that the server can swap them; with ``kept``, that the new graph is the one of before a
        swap. Raises ``InvalidSettings`` otherwise, ``BusUnavailable`` and ``GraphUnavailable``.
        """
        app_id = self._app_id
        self._run_id = await self._graph.check()
        if swap and not (self._live.whole.can_exchange and self._graph.whole.can_exchange):
            raise InvalidSettings(
                "--swap: a database of this graph server cannot take the place of another one. Rebuild --into another "
                "server, and start workers and responders with its URL as GRAPHWEFT_GRAPH_URL"
            )
        if swap and self._run_id != await self._live.check():
            raise InvalidSettings("--swap: both graphs must be on one server: leave out --into")
        if swap and self._given is not None and State.NEEDS_REBUILD.value in await self._log.parked_for():
            raise InvalidSettings(
                f"--rules: workers must have applied the events of {app_id!r} before its past is restated, and they "
                f"wait until its graph is rebuilt: run `graphweft rebuild --app {app_id} --swap`, then "
                f"`graphweft rebuild --app {app_id} --drop`, then this command again"
            )
        self.gaps = await self._log.check_complete()
        if self._graph.whole.rewrites:
            given = [self._given] if self._given is not None else await rule_sets(self._log, self._rules)
            await check_second_queries(self._graph, given)
        self._preludes = await self._log.preludes()
        if self._preludes and self._given is not None:
            raise InvalidSettings(
                f"--rules: {app_id!r} was restored from an export, and its past cannot be restated: leave out --rules"
            )
        if self._preludes:
            self._follow_log()  # snapshots are of the bus alone
        there = await self._graph.whole.graph_id(app_id)
        if there and there == await self._live.whole.graph_id(app_id):
            raise InvalidSettings(
                f"this place is that of the live graph of {app_id!r}: give --graph-template for another name, or "
                "--into for another server"
            )
        await self._open(resume=resume, kept=kept)

    async def _open(self, *, resume: bool, kept: bool) -> None:
        app_id = self._app_id
        found = dict(await self._graph.checkpoints(app_id, timeout_s=self._timing.replay.query_s))
        if any(map(is_loading, found.values())):  # it was killed while it loaded a snapshot
            await self._graph.whole.drop(app_id)
            found = {}
        basis = await read_basis(self._graph, app_id)
        if basis.rejected and not resume:
            await self._graph.whole.drop(app_id)
            found, basis = {}, GraphBasis()
        count = await self._count_erasures(swap=False)
        # A rebuild that was interrupted at once leaves a graph with nothing in it.
        exists = basis != GraphBasis() or any(each != START for each in found.values()) or await self._has_nodes()
        self._new, self.continued = not exists, exists
        seals = {partition: each for partition, each in found.items() if is_sealed(each)}  # live before a swap
        is_kept = bool(seals) or basis.kept
        if kept and not is_kept:
            raise InvalidSettings(
                f"there is no graph of {app_id!r} from before a swap: `graphweft rebuild --swap` keeps one"
            )
        if exists and not resume:
            other = "--graph-template for another name, or --into for another server"
            raise InvalidSettings(
                f"the graph of {app_id!r} from before the last swap is at the place of the new one: `graphweft "
                f"rollback --app {app_id}` puts it back unless the past was restated since, `graphweft rebuild --app "
                f"{app_id} --drop` deletes it; or give {other}"
                if is_kept
                else f"a graph of {app_id!r} exists at the place of the new one: give --resume to continue an "
                f"interrupted rebuild, --drop to delete it, {other}"
            )
        if exists and basis.erasures != count:
            raise InvalidSettings(
                f"the graph of {app_id!r} at the place of the new one was made before something was erased of the app, "
                f"and may hold it: delete it by `graphweft rebuild --app {app_id} --drop`"
            )
        wanted = await self._wanted_basis(basis, is_kept=is_kept)
        if exists and basis.rules != wanted and kept:
            raise InvalidSettings(
                f"the graph of {app_id!r} from before the last swap cannot be put back: it was made by other rules "
                "than the log names now for its events, as the swap changed the rules of the past. To have the rules "
                f"of before again, run `graphweft rebuild --app {app_id} --drop`, then `graphweft rebuild --app "
                f"{app_id} --rules FOLDER --swap` with a folder of these rules"
            )
        if exists and basis.rules != wanted:
            raise InvalidSettings(
                f"the graph of {app_id!r} at the place of the new one"
                + (", which is from before the last swap," if is_kept else "")
                + " was made by other rules than "
                + ("the log names now for its events" if self._given is None else "these")
                + f": delete it by `graphweft rebuild --app {app_id} --drop`, then run `graphweft rebuild --app "
                f"{app_id} --rules FOLDER --swap` with the rules that you want"
            )
        self._basis = GraphBasis(rules=wanted, kept=is_kept, erasures=count)
        if self._basis != basis:
            await self._write_basis()
        for partition, checkpoint in seals.items():
            await move(self._graph, app_id, partition, checkpoint, replace(checkpoint, plan=""))

    async def _count_erasures(self, *, swap: bool) -> int:
        """Return the count of the app's erasures. With ``swap``, refuse a graph of before one, or of during one."""
        if self._erasing is not None:
            return self._erasing
        found = await self._log.erasures()
        if swap and found.open:
            raise InvalidSettings(
                f"an erasure of {self._app_id!r} was begun and has not ended: give `graphweft erase` again, then "
                "rebuild anew"
            )
        if swap and found.count != self._basis.erasures:
            raise InvalidSettings(
                f"something was erased of {self._app_id!r} since the new graph was begun, and it may hold it: delete "
                "it by `graphweft rebuild --drop` and rebuild anew"
            )
        return found.count

    async def _sealed(self, partition: int) -> None:
        """Nobody writes to the live graph: check that it may be replaced, and let it say until when it is good.

        One from before an erasure may hold what was erased, and says so ever after.
        """
        if self._lease is not None:
            await self._lease.check()
        count = await self._count_erasures(swap=True)
        basis = await read_basis(self._live, self._app_id)
        if basis.erasures != count and not basis.older_than(await self._needed(), self._app_id):
            await write_basis(self._live, self._app_id, partition, replace(basis, erasures=count))

    async def _needed(self) -> GraphBasis:
        """Return what the bus says that the live graph needs to have."""
        return await needed_basis(self._log.bus.purges, self._app_id) or GraphBasis()

    async def _wanted_basis(self, basis: GraphBasis, *, is_kept: bool) -> str:
        """Return the basis of the new graph; follow the log if the given rules were recorded before an interruption."""
        activations = await self._log.bus.rules.activations()
        logged = logged_basis(activations, self._app_id)
        if self._given is None:
            return logged
        restated = newest(activations, restated_scope(self._app_id))
        recorded = restated is not None and restated.digest == self._given.digest
        if recorded and basis.rules == logged and not is_kept:
            self._follow_log()
            return logged
        return given_basis(self._given.digest)

    def _follow_log(self) -> None:
        self._given = None
        self._replay = Replay(self._log.bus, self._graph, self._rules, self._app_id)

    async def _write_basis(self) -> None:
        await write_basis(self._graph, self._app_id, (await self._log.partitions())[0], self._basis)

    async def run(self, to: Mapping[int, str] | None = None) -> None:
        """Apply the log up to an offset for each partition, or to its end. A further call continues.

        What was restored from an export comes first, all of it. Raises like ``Replay.run``, and ``InvalidSettings`` if
        the new graph is beyond an offset.
        """
        if not self._after_preludes:
            history = replay_preludes(self._preludes, self._graph, self._rules, self._app_id)
            async with contextlib.aclosing(history):
                async for number, restored in history:
                    self.done[number] = restored
                    self._tell(self.done)
            self._after_preludes = True
        partitions = await self._log.partitions() if to is None else sorted(to)
        if self._new:
            self._new = False
            self.restored = await self._replay.restore(to or dict.fromkeys(partitions))
        for partition in partitions:
            end = None if to is None else to[partition]
            place = (await self._graph.progress(self._app_id, partition)).checkpoint.offset
            if end is not None and is_after(place, end):
                raise InvalidSettings(
                    f"the new graph is at {partition}:{place}, after {partition}:{end}: give --graph-template for "
                    "another one"
                )
            known = self.done.get(partition, ReplayStep())
            async with contextlib.aclosing(self._replay.run(partition, to=end, counted=known.offset)) as steps:
                async for step in steps:
                    self.done[partition] = ReplayStep(
                        offset=step.offset,
                        entries=known.entries + step.entries,
                        events=known.events + step.events,
                        skips=known.skips + step.skips,
                        letters=step.letters if not known.letters else {**known.letters, **step.letters},
                    )
                    self._tell(self.done)

    async def compare(self) -> DigestComparison | None:
        """Bring the new graph to the place of the live one and return both digests.

        None: the live graph changed, or held an unfinished plan, during each attempt. Raises like ``run``.
        """
        for attempt in range(_ROUNDS):
            if attempt:
                await self._clock.sleep(self._timing.replay.rest_s)
            place = await self._log.marks()
            if any(map(has_plan, place.values())):  # a seal is no plan: nothing is written under it
                continue
            await self.run({number: each.offset for number, each in place.items() if not is_of_prelude(number)})
            await self._clock.sleep(self._live.settle_s)
            live = await read_digest(self._live, self._app_id)
            if place == await self._log.marks():
                rebuilt = await read_digest(self._graph, self._app_id)
                return DigestComparison(live=live, rebuilt=rebuilt, before=await self._before())
        return None

    async def _before(self) -> str:
        """Return what was erased or restated since the live graph was made, in words."""
        basis = await read_basis(self._live, self._app_id)
        if basis.erasures != (await self._log.erasures()).count:
            return "something was erased"
        logged = logged_basis(await self._log.bus.rules.activations(), self._app_id)
        return "the past was restated" if basis.rules != logged else ""

    async def restate(self) -> RestatementResult | None:
        """Record that the past follows the given rules, when the new graph holds it; then the graph follows the log.

        Waits until workers have read the record. None: it was done before an interruption. Raises like ``run``; then
        restate again, or leave it: without the record nothing has changed, and with it a rebuild without given rules
        does the rest.
        """
        if self._given is None:
            return None
        owners = {each.id: each.owner for each in await self._log.bus.partitions.status()}
        if all(owners.get(partition) is None for partition in await self._log.partitions()):
            raise InvalidSettings(
                "no worker runs, and one must read that the past is restated: start it, and repeat the command with "
                "--resume"
            )
        restatement = Restatement(self._log, self._given)
        for _ in range(_RESTATEMENTS):
            made = await restatement.record()
            until = await self._until(made)
            await self.run(until)
            await self._wait_for_workers(until)
            settled = await restatement.settle(until, failed_letters(self.done.values()))
            if not await restatement.has_stray_retries(until):
                break
        else:
            raise GraphUnavailable(f"dead letters of {self._app_id!r} kept being retried: repeat it with --resume")
        self._basis = replace(self._basis, rules=logged_basis([made], self._app_id))
        await self._write_basis()
        self._follow_log()
        return RestatementResult(activation=made, letters=settled)

    async def _until(self, activation: Activation) -> dict[int, str]:
        partitions = await self._log.partitions()
        return {each: activation.positions[each] for each in partitions if each in activation.positions}

    async def _wait_for_workers(self, until: Mapping[int, str]) -> None:
        """Wait until no worker follows the rules of before: all of them have read the restatement."""
        timing = self._timing.replay
        behind = await self._log.until_applied(until, limit_s=timing.workers_s, step_s=timing.rest_s, clock=self._clock)
        if behind:
            raise InvalidSettings(
                f"the log says that the past of {self._app_id!r} follows these rules, and the live graph does not yet: "
                "start the workers, wait until `graphweft status` shows no lag, and repeat the command with --resume"
            )

    async def refuse_losses(self) -> bool:
        """Raise ``InvalidSettings`` if a swap would drop nodes because the log has lost what they were made from.

        Call it first. The new graph is built to its end for that, only if the log has lost anything, and deleted. Then
        it returns True, and another ``Rebuild`` has to begin.
        """
        if not (lost := await self._log.lost_by()):
            return False
        missing = await self._missing_nodes()
        await self._graph.whole.drop(self._app_id)
        if missing:
            raise LogLost(
                f"the log has lost what the live graph of {self._app_id!r} was made from: {lost}. A new graph would "
                f"lack {GraphLosses(nodes=missing)}. Restore the log"
            )
        return True

    async def _missing_nodes(self) -> Mapping[str, int]:
        """Return, by label, how many nodes of the live graph the log does not make."""
        keys = node_keys(await rule_sets(self._log, self._rules))
        missing: Mapping[str, int] = {}
        for _ in range(_ROUNDS):  # workers may go on, and make nodes that the new graph has not yet
            place = await self._log.marks()
            await self.run()
            await self._clock.sleep(max(self._live.settle_s, self._graph.settle_s))
            missing = await missing_nodes(self._live, self._graph, self._app_id, keys)
            if not missing or place == await self._log.marks():
                break
        return missing

    async def swap(self) -> None:
        """Put the new graph in the place of the live one, which gets the place of the new one.

        Workers of the app wait for a moment, those of other apps do not. If it is killed, workers go on with the live
        graph after a minute, or with the new one if that is in its place. Raises like ``run``; then the live graph
        is in its place and workers go on.
        """
        activations = await self._log.bus.rules.activations()
        restated = newest(activations, restated_scope(self._app_id))
        # Else it was waited for before: workers that wait with an older graph would never get there.
        if restated is not None and (await self._needed()).rules != logged_basis(activations, self._app_id):
            await self._wait_for_workers(await self._until(restated))
        was_kept = self._basis.kept
        if was_kept:
            self._basis = replace(self._basis, kept=False)
            await self._write_basis()
        swap = GraphSwap(
            self._log,
            self._graph,
            run_id=self._run_id,
            apply=self.run,
            sealed=self._sealed,
            clock=self._clock,
            timing=self._timing,
        )
        await swap.run()
        if self._basis.rules or self._basis.erasures:
            await put_purge(self._log.bus.purges, Purge(app_id=self._app_id, needed=self._basis))
        if was_kept:
            rejected = replace(self._basis, rejected=True)
            with contextlib.suppress(GraphUnavailable):  # then the next rebuild asks what to do with that graph
                await write_basis(self._graph, self._app_id, (await self._log.partitions())[0], rejected)
        else:
            await self._has_joined()

    async def _has_joined(self) -> None:
        """If the graph lacked events that the bus had lost, say which of them failed now, and that it lacks none."""
        bus, app_id = self._log.bus, self._app_id
        if bus.archive is None or app_id not in await to_rebuild(bus.archive):
            return
        letters = failed_letters(self.done.values())
        await put_letters(LettersAfterErasures(bus), (each for each in letters if not is_of_prelude(each.partition)))
        await has_rebuilt(bus.archive, app_id)

    async def _has_nodes(self) -> bool:
        async for node in self._graph.whole.nodes(self._app_id):
            if not node.is_internal:
                return True
        return False
