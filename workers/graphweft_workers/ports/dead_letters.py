"""The port of dead letters: events and mutations that could not be applied."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import batched
from typing import Final, Protocol

from graphweft_contracts import DeadLetter, wire
from graphweft_workers.ports.event_log import Entry

FIELDS: Final = b',"fields":{'
"""Where the entry begins in the JSON of a dead letter. Texts before it cannot contain it: their quotes are escaped."""
NO_FIELDS: Final = b',"fields":{}}'
_MOST_LETTERS: Final = 1_000_000
_PAGE_LETTERS: Final = 500
_WRITTEN_AT_ONCE: Final = 100
_PAGE_BYTES: Final = 4 * 1024**2


def retry_entry(letter: DeadLetter) -> dict[bytes, bytes]:
    """Return the entry that tries a dead letter's event again, or only its mutation if it names one."""
    if letter.rule and letter.mutation:
        again = wire.Retry(letter.id, letter.rule, letter.mutation, asks=letter.reason == "skipped")
    else:
        again = wire.Retry(letter.id, letter.event_type or wire.WHOLE, wire.WHOLE)
    # Letters of older versions do not say when the log took the entry; it was before the letter was written.
    recorded = {wire.RECORDED: letter.time.isoformat().encode()}
    return {**recorded, **wire.unpack(letter.fields), wire.RETRY: again.encode()}


def drop_entry(letter: DeadLetter) -> dict[bytes, bytes]:
    """Return the entry that records a drop, so that a rebuild passes over the same events or rows."""
    offsets = () if letter.reason == "trimmed" else letter.passed_over
    app_id = None if letter.reason == "set_aside" else letter.app_id
    dropped = wire.DroppedLetter(app_id, letter.rule, letter.mutation, offsets, letter.reason)
    return {wire.DROPPED: dropped.encode()}


def without_fields(body: bytes) -> bytes:
    """Return the JSON of a dead letter without its entry, which is the last and largest part."""
    at = body.find(FIELDS)
    return body if at < 0 else body[:at] + NO_FIELDS


def letter_of_rest(letter: DeadLetter, rest: Sequence[str], first: Entry | None) -> DeadLetter:
    """Return a letter for some of its entries. ``first`` is the first of them; for None it only refers to them."""
    fields = {} if first is None else wire.pack(first.fields)
    return letter.of_entries(tuple(rest)).model_copy(update={"fields": fields, "event_id": None})


def first_letters(
    letters: Iterable[DeadLetter], limit: int, app_id: str | None = None, size: int | None = None, *,
    whole: bool = True, ids: Collection[str] | None = None,
) -> list[DeadLetter]:  # fmt: skip
    """Return what ``DeadLetters.read`` returns of letters that are in memory, the oldest first."""
    found: list[DeadLetter] = []
    total = 0
    for each in letters:
        if app_id not in (None, each.app_id) or (ids is not None and each.id not in ids):
            continue
        total += 0 if size is None else len(each.model_dump_json())
        if len(found) == limit or (found and size is not None and total > size):
            break
        found.append(each if whole else each.model_copy(update={"fields": {}}))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LettersOfApp:
    """How many dead letters an app has, and their bytes as they are stored."""

    count: int = 0
    size: int = 0


class DeadLetters(Protocol):
    """The dead letters of a bus; every group of readers shares them. Every method raises ``BusUnavailable``."""

    async def put(self, letters: Sequence[DeadLetter]) -> None:
        """Write dead letters. A letter with a known id replaces the old one."""
        ...

    async def extend(self, letter: DeadLetter | None, longer: DeadLetter) -> bool:
        """Replace ``letter``, or no letter, by ``longer``, which has the same id. Return False if it has changed."""
        ...

    async def read(
        self, *, limit: int, app_id: str | None = None, size: int | None = None, whole: bool = True,
        ids: Collection[str] | None = None,
    ) -> Sequence[DeadLetter]:  # fmt: skip
        """Return up to ``limit`` dead letters, those with the oldest ``time`` first.

        ``app_id`` and ``ids``: those of this app, and those with these ids, only. ``size``: no more than about so many
        bytes, but at least one letter.
        ``whole=False``: with empty ``fields``, for whoever only counts; the entries are most of the bytes.
        """
        ...

    async def requeue(
        self, letter: DeadLetter, entries: Sequence[Mapping[bytes, bytes]], rest: DeadLetter | None = None
    ) -> bool:
        """Append entries to the letter's partition and replace the letter by ``rest``, or delete it, in one step.

        Without entries it only replaces or deletes the letter. Return False, and do nothing, if the stored letter
        differs from ``letter``.
        """
        ...

    async def by_app(self) -> Mapping[str, LettersOfApp]:
        """Return how many letters each app has, and those of no app under "", without reading them.

        Letters that versions before this method wrote may be missing.
        """
        ...


async def letter_pages(letters: DeadLetters, *, app_id: str | None = None) -> AsyncGenerator[Sequence[DeadLetter]]:
    """Yield all dead letters with their events, oldest first: pages of about 4 MiB, so that memory is bounded.

    Letters that are written meanwhile may be missing. Raises ``BusUnavailable``.
    """
    known = await letters.read(limit=_MOST_LETTERS, app_id=app_id, whole=False)
    for some in batched((each.id for each in known), _PAGE_LETTERS):
        left = dict.fromkeys(some)
        while left:
            page = await letters.read(limit=len(left), ids=[*left], size=_PAGE_BYTES)
            if not page:
                break
            yield page
            for each in page:
                left.pop(each.id, None)


async def letter_with(letters: DeadLetters, letter_id: str) -> DeadLetter | None:
    """Return the dead letter with an id; None if it does not exist. Raises ``BusUnavailable``."""
    return next(iter(await letters.read(limit=1, ids=(letter_id,))), None)


async def all_letters(letters: DeadLetters) -> Sequence[DeadLetter]:
    """Return all dead letters without their events, oldest first. Raises ``BusUnavailable``."""
    return await letters.read(limit=_MOST_LETTERS, whole=False)


async def put_letters(letters: DeadLetters, written: Iterable[DeadLetter]) -> None:
    """Write dead letters, some at a time: each may hold a large event. Raises ``BusUnavailable``."""
    for some in batched(written, _WRITTEN_AT_ONCE):
        await letters.put(some)


async def letter_count(letters: DeadLetters, app_id: str | None = None) -> int:
    """Return the number of dead letters, of an app or of all. Raises ``BusUnavailable``."""
    return sum(each.count for app, each in (await letters.by_app()).items() if app_id in (None, app))


def counted_by_app(letters: Iterable[DeadLetter]) -> dict[str, LettersOfApp]:
    """Return what ``DeadLetters.by_app`` returns of letters that are in memory."""
    found: dict[str, LettersOfApp] = {}
    for letter in letters:
        before = found.get(letter.app_id or "", LettersOfApp())
        size = len(letter.model_dump_json(exclude_none=True))
        found[letter.app_id or ""] = LettersOfApp(count=before.count + 1, size=before.size + size)
    return found


class LettersAround:
    """``DeadLetters`` around others; a subclass replaces what it changes."""

    def __init__(self, letters: DeadLetters) -> None:
        self._letters = letters

    async def put(self, letters: Sequence[DeadLetter]) -> None:
        """See ``DeadLetters.put``."""
        await self._letters.put(letters)

    async def extend(self, letter: DeadLetter | None, longer: DeadLetter) -> bool:
        """See ``DeadLetters.extend``."""
        return await self._letters.extend(letter, longer)

    async def read(
        self, *, limit: int, app_id: str | None = None, size: int | None = None, whole: bool = True,
        ids: Collection[str] | None = None,
    ) -> Sequence[DeadLetter]:  # fmt: skip
        """See ``DeadLetters.read``."""
        return await self._letters.read(limit=limit, app_id=app_id, size=size, whole=whole, ids=ids)

    async def requeue(
        self, letter: DeadLetter, entries: Sequence[Mapping[bytes, bytes]], rest: DeadLetter | None = None
    ) -> bool:
        """See ``DeadLetters.requeue``."""
        return await self._letters.requeue(letter, entries, rest)

    async def by_app(self) -> Mapping[str, LettersOfApp]:
        """See ``DeadLetters.by_app``."""
        return await self._letters.by_app()
