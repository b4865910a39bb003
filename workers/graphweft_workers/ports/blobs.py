"""The port of the archive: named blobs, each written whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class BlobStore(Protocol):
    """Blobs below one place. Names have parts between ``/`` and are sorted as text.

    Every method raises ``ArchiveUnavailable`` when the store does not answer, or refuses.
    """

    def below(self, folder: str) -> BlobStore:
        """Return the blobs below a folder, as a store of their own."""
        ...

    async def put(self, name: str, data: bytes) -> None:
        """Write a blob, in place of one with the same name. It is on disk when this returns."""
        ...

    async def get(self, name: str) -> bytes | None:
        """Return a blob; None if there is none."""
        ...

    async def names(self, prefix: str) -> list[str]:
        """Return the names of all blobs in the folder ``prefix``, which ends with ``/``, and below, sorted."""
        ...

    async def delete(self, names: Sequence[str]) -> None:
        """Delete blobs; those that are not there are ignored."""
        ...
