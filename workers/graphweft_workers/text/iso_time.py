"""Times that people and files give as text."""

from __future__ import annotations

from datetime import UTC, datetime


def iso_time(text: str) -> datetime:
    """Return the time of a text in ISO 8601, with its zone if it has one. Raises ``ValueError``.

    As in the times of events, the sign of UTC may be in lower case; Python alone refuses that.
    """
    return datetime.fromisoformat(f"{text[:-1]}Z" if text.endswith("z") else text)


def in_utc(time: datetime) -> datetime:
    """Return a time in UTC. One without a zone is in UTC, so that the zone of this machine changes nothing.

    Raises ``ValueError`` for a time that in UTC is before the year 1 or after 9999.
    """
    try:
        return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
    except OverflowError as error:
        raise ValueError("the time is outside of the years 1 to 9999 in UTC") from error
