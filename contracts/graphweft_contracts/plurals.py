"""Numbers with their noun, for people."""

from __future__ import annotations


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return ``1 entry`` or ``2,000 entries``: the number with the noun in singular or plural.

    ``many`` is needed if the noun does not end the text, such as for ``letter is dropped``.
    """
    if many is None:
        many = f"{one[:-1]}ies" if one.endswith("y") else f"{one}s"
    return f"{number:,} {one if number == 1 else many}"
