"""The place of a rule in a reply: from the folder of rules on, because callers must not learn the server's paths."""

from __future__ import annotations

from pathlib import Path

from graphweft_rules.files.model import Place


def shown_place(place: Place, root: Path | None) -> str:
    """Return ``file:line:column`` with the file relative to ``root``; of a file elsewhere only its name.

    Without ``root`` the place is unchanged.
    """
    if root is None:
        return str(place)
    file = Path(place.file)
    for folder in (root, root.absolute(), root.resolve()):
        if file.is_relative_to(folder):
            return str(Place(file=file.relative_to(folder).as_posix(), line=place.line, column=place.column))
    if file.is_absolute() or ".." in file.parts:
        return str(Place(file=file.name, line=place.line, column=place.column))
    return str(place)
