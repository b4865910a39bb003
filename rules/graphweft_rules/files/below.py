"""The files below a folder, as every reader of rules and tests sees them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def files_below(root: Path) -> Iterator[Path]:
    """Yield the files below ``root``, also through links to folders, and none of hidden folders below it.

    A workflow's folder may be a link: that of a mounted ConfigMap is. A link to a folder above itself is not followed.
    """
    for folder, names, files in os.walk(root, followlinks=True):
        above = {os.path.realpath(folder), *(str(each) for each in Path(os.path.realpath(folder)).parents)}
        names[:] = [
            name for name in names
            if not name.startswith(".") and os.path.realpath(os.path.join(folder, name)) not in above
        ]  # fmt: skip
        yield from (Path(folder, name) for name in files)
