"""What a rebuild or a rollback did for one app."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from graphweft_contracts import DeadLetter, GraphweftError
from graphweft_contracts.plurals import counted
from graphweft_workers.reports.report import Part

if TYPE_CHECKING:  # the bus answers before what replays is loaded
    from graphweft_rules import RuleSet
    from graphweft_workers.archive.log_gaps import LogGap
    from graphweft_workers.ports.graph_store import GraphStore
    from graphweft_workers.replay.app_log import AppLog
    from graphweft_workers.replay.graph_losses import GraphLosses
    from graphweft_workers.replay.rebuild import DigestComparison, RestatementResult
    from graphweft_workers.replay.replay import ReplayStep
    from graphweft_workers.rule_sets.active_rules import ActiveRules


async def losses_of(
    old: GraphStore, new: GraphStore, log: AppLog, rules: ActiveRules, *, fewer: bool, warn: Callable[[str], None],
    before: Iterable[RuleSet] = (),
) -> GraphLosses | None:  # fmt: skip
    """Return what the new graph lacks; None if that cannot be read, which ``warn`` gets: the work is done.

    ``before`` are rule sets that the log named before the past was restated, and that made indexes in the old graph.
    """
    from graphweft_workers.replay.graph_losses import find_losses
    from graphweft_workers.replay.second_queries import rule_sets

    try:
        sets = [*before, *await rule_sets(log, rules)]
        return await find_losses(old, new, log.app_id, sets, fewer=fewer)
    except GraphweftError as error:
        warn(f"it is not known what the new graph of {log.app_id!r} lacks: {error}")
        return None


@dataclass(slots=True, kw_only=True)
class RebuildReport:
    """The result for one app."""

    app: str
    graph: str
    """The name of the new graph."""
    done: Mapping[int, ReplayStep] = field(default_factory=dict[int, "ReplayStep"])
    restored: int = 0
    """Events that came from a snapshot."""
    gaps: Sequence[LogGap] = ()
    """What the log lacks, and somebody has accepted as lost."""
    elapsed_s: float = 0.0
    verify: bool = False
    compared: DigestComparison | None = None
    parked_for: Collection[str] = ()
    """Why workers have parked the app, if the graphs were not compared although that was asked."""
    swap: bool = False
    swapped: bool = False
    unknown: bool = False
    """Whether the app has neither a graph nor events that match rules. Then no graph is made."""
    given: str = ""
    """The hash of the rules that were given."""
    active: str = ""
    """The hash of the rules that new events follow."""
    restated: RestatementResult | None = None
    resumed: bool = False
    losses: GraphLosses | None = None
    """What the live graph, or the one from before a swap, has and the new one lacks."""

    @property
    def events(self) -> int:
        """The number of events that were applied."""
        return sum(each.events for each in self.done.values())

    @property
    def same(self) -> bool | None:
        """Whether both graphs are equal; None if they were not compared."""
        return None if self.compared is None else self.compared.live == self.compared.rebuilt

    @property
    def not_compared(self) -> bool:
        """Whether the live graph never stood still for a comparison: it is not known what the new one lacks."""
        return self.verify and self.compared is None

    @property
    def failed(self) -> bool:
        """Whether the app is unknown, or the graphs are not known to be equal where that was asked."""
        return self.unknown or (self.verify and not self.same)

    @property
    def letters(self) -> list[DeadLetter]:
        """What failed and had not failed live, by id."""
        from graphweft_workers.replay.replay import failed_letters

        return failed_letters(self.done.values())

    @property
    def skips(self) -> int:
        """The number of skips that the live graph did not have."""
        return sum(each.skips.total() for each in self.done.values())

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        found: dict[str, Any] = {
            "graph": self.graph,
            "seconds": round(self.elapsed_s, 3),
            "partitions": [
                {"partition": number, "offset": each.offset, "entries": each.entries, "events": each.events}
                for number, each in sorted(self.done.items())
            ],
            "skips": self.skips,
            "dead_letters": [letter.model_dump(mode="json") for letter in self.letters],
            "restored": self.restored,
            "swapped": self.swapped,
            "unknown": self.unknown,
            "lost": sum(each.entries for each in self.gaps),
        }
        if self.given:
            found |= {"rules": self.given, "active": self.active}
        if self.losses is not None:
            found["lacks"] = self.losses.to_dict()
        if self.restated is not None:
            letters = self.restated.letters
            found["restated"] = {
                "number": self.restated.activation.number,
                "dead_letters_removed": letters.removed,
                "dead_letters_written": letters.written,
            }
        if self.compared is not None:
            found["same"] = self.same
            for key, digest in (("live", self.compared.live), ("rebuilt", self.compared.rebuilt)):
                found[key] = {"digest": digest.sha256, "nodes": digest.nodes, "relationships": digest.relationships}
        return found

    def parts(self) -> Iterator[Part]:
        """Yield it for people; nothing of an unknown app, or before any event, of which a warning says all."""
        if self.unknown or (self.not_compared and not self.done):
            return
        yield f"{counted(self.events, 'event')} applied to the graph {self.graph!r} in {self.elapsed_s:.1f} s"
        others = "that the live graph has not skipped"
        skipped = (f"mutation was skipped {others}", f"mutations were skipped {others}")
        if self.given:
            skipped = ("mutation or event the new rules skip", "mutations or events the new rules skip")
        if self.restored:
            yield f"{counted(self.restored, 'more event')} came from a snapshot"
        if self.skips:
            yield counted(self.skips, *skipped)
        for letter in self.letters:
            failed = "failed" if self.given else "failed, and has not failed live"
            yield f"{failed}: {letter.rule}/{letter.mutation} at {letter.offset}: {letter.message}"
        yield from self._compared_parts()
        if self.restated is not None:
            letters = self.restated.letters
            yield (
                f"The log says that earlier events follow the rules {self.given[:12]} from now on (number "
                f"{self.restated.activation.number} in `graphweft rules list`)."
            )
            yield f"Dead letters of these events: {letters.removed:,} removed, {letters.written:,} written."
        if self.swapped:
            yield f"The new graph is live now. The name {self.graph!r} is that of the graph from before."
            yield (
                "To go back, rebuild with --rules and the rules of before, which `graphweft rules show HASH --to "
                "FOLDER` writes into a folder; `graphweft rebuild --drop` deletes it."
                if self.restated is not None
                else "`graphweft rollback` puts that graph back; `graphweft rebuild --drop` deletes it."
            )
            return
        if self.swap:
            yield "The graphs were not swapped."
        yield f"The graph {self.graph!r} stays: `--resume` continues it, `graphweft rebuild --drop` deletes it."

    def _compared_parts(self) -> Iterator[Part]:
        compared = self.compared
        if compared is None:
            return
        if self.same:
            yield f"equal to the live graph: {compared.live.sha256}"
            return
        for title, each in (("live", compared.live), ("rebuilt", compared.rebuilt)):
            size = f"{counted(each.nodes, 'node')}, {counted(each.relationships, 'relationship')}"
            yield f"{title}: {size}, {each.sha256}"
        if compared.before:
            yield (
                f"The graphs differ. The live one is from before {compared.before}: `graphweft rebuild --swap` puts "
                "the new one in its place."
            )
            return
        yield (
            "The graphs differ. After an upgrade that is expected if this version makes other nodes of the same "
            "events: 'Upgrade' in docs/operations.md names them, and `graphweft rebuild --swap` puts the new graph in "
            "the place of the live one. Otherwise something else than the rules has written to one, a rule gives other "
            "results each time, or chats of an app with the order `chat` write to the same nodes."
        )
        if self.restored:
            yield (
                f"{counted(self.restored, 'event')} of the new graph came from a snapshot. To tell whether that is the "
                "reason, delete the new graph and compare again with GRAPHWEFT_SNAPSHOT_EVENTS=0, which uses the log "
                "alone. If the graphs are equal then, delete the app's files below `snapshots` in the archive: they "
                "are made again."
            )

    def warnings(self) -> Iterator[str]:
        """Yield what to know of the graph, whoever reads the result."""
        app = self.app
        if self.gaps:
            from graphweft_workers.archive.log_gaps import without

            yield without(self.gaps)
        if not self.events and not self.restored and not self.resumed and not self.not_compared:
            yield (
                f"no event of the app {app!r} in the log matches a rule"
                + (", and it has no graph: check its name" if self.unknown else "")
            )
        if self.not_compared and self.parked_for:
            yield (
                f"the graphs of {app!r} were not compared: workers have parked the app in the middle of its writes "
                f"({', '.join(sorted(self.parked_for))}): compare again with --resume when `graphweft status` names it "
                "no longer"
            )
        elif self.not_compared:
            yield f"the live graph of {app!r} kept changing: compare again with --resume when less is written"
        if self.losses:
            which = "that was live until now" if self.swapped else "that is live"
            yield (
                f"the graph of {app!r} {which} has what the new one lacks, because the log does not make it: "
                f"{self.losses}. Make it again by hand, or by rules: a search index comes with a rule that names it as "
                "Label.property"
            )
        if self.given and self.swap and self.given != self.active:
            active = f"the rules {self.active[:12]}" if self.active else "no rules"
            yield (
                f"new events of {app!r} follow {active}, not {self.given[:12]}: to make these active too, run "
                "`graphweft rules push` with their folder"
            )
