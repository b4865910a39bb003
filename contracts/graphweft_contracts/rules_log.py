"""Rule sets on the bus, and the places of the log from which they are active."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, cast

from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_contracts.layout import ALL_APPS, RESTATED
from graphweft_contracts.wire import ACTIVATION, CONTENT_TYPE, DATA, DROPPED, PREFIX, RETRY

_CONTENT: Final = frozenset({CONTENT_TYPE, DATA, RETRY, DROPPED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """Makes a rule set active for a scope, at one place of each partition that holds events of the scope.

    A restatement is about the past of one app instead: its events before the place follow the rule set, and later ones
    follow what is active without it. Its scope is ``restated_scope(app)``. No app has that name, so earlier versions
    ignore it.
    """

    number: int
    """Counts from 1 over all scopes."""
    scope: str
    """An app id, ``layout.ALL_APPS``, or ``restated_scope`` of an app."""
    digest: str
    """Of the rule set."""
    time: datetime
    positions: Mapping[int, str] = field(default_factory=dict[int, str])
    """By partition: the offset of the entry that announces it. Later events follow these rules."""

    @property
    def restates(self) -> str | None:
        """The app whose past this restates; None for any other activation."""
        return self.scope.removeprefix(RESTATED) if self.scope.startswith(RESTATED) else None

    def entry(self) -> dict[bytes, bytes]:
        """Return the entry that announces it in a partition."""
        body = {"number": self.number, "scope": self.scope, "rules": self.digest}
        return {ACTIVATION: json.dumps(body).encode()}

    def encode(self) -> bytes:
        """Return it as JSON, for the bus."""
        positions = {str(number): offset for number, offset in self.positions.items()}
        body = {
            "number": self.number,
            "scope": self.scope,
            "rules": self.digest,
            "time": self.time.isoformat(),
            "positions": positions,
        }
        return json.dumps(body, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, text: bytes) -> Activation:
        """Return the activation that ``encode`` wrote. Raises ``ValueError`` for anything else."""
        try:
            body = cast("dict[str, Any]", json.loads(text))
            return cls(
                number=int(body["number"]),
                scope=str(body["scope"]),
                digest=str(body["rules"]),
                time=datetime.fromisoformat(body["time"]),
                positions={int(number): str(offset) for number, offset in body["positions"].items()},
            )
        except (LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError("the text is not an activation of rules") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRules:
    """The files of a rule set by their paths from the root, and when it was first pushed."""

    files: Mapping[str, bytes]
    time: datetime = field(default_factory=SYSTEM_CLOCK.now)
    summary: Any = None
    """What whoever compiled the files knows about them, as JSON values; None in rule sets of earlier versions."""

    def encode(self) -> bytes:
        """Return it as JSON, for the bus."""
        files = {name: base64.b64encode(data).decode() for name, data in sorted(self.files.items())}
        body = {"files": files, "time": self.time.isoformat(), "summary": self.summary}
        return json.dumps(body, separators=(",", ":")).encode()

    def updated_by(self, newer: StoredRules) -> StoredRules | None:
        """Return what replaces this one when ``newer`` with the same files is stored: its summary; None for nothing."""
        if newer.summary is None or newer.summary == self.summary:
            return None
        return replace(self, summary=newer.summary)

    @classmethod
    def decode(cls, text: bytes) -> StoredRules:
        """Return the rule set that ``encode`` wrote. Raises ``ValueError`` for anything else."""
        try:
            body = cast("dict[str, Any]", json.loads(text))
            files = {str(name): base64.b64decode(data) for name, data in body["files"].items()}
            return cls(files=files, time=datetime.fromisoformat(body["time"]), summary=body.get("summary"))
        except (LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError("the text is not a rule set") from error


def announced(fields: Mapping[bytes, bytes]) -> int | None:
    """Return the number of the activation that an entry announces; None for any other entry."""
    value = fields.get(ACTIVATION)
    if value is None:
        return None
    try:
        number: Any = json.loads(value)["number"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return number if type(number) is int else None


def only_announces(fields: Mapping[bytes, bytes]) -> bool:
    """Return whether an entry claims to announce an activation and holds nothing of an event, a retry or a drop."""
    return ACTIVATION in fields and not any(name in _CONTENT or name.startswith(PREFIX) for name in fields)


def restated_scope(app_id: str) -> str:
    """Return the scope of the activations that restate the past of an app."""
    return RESTATED + app_id


def newest(activations: Sequence[Activation], scope: str) -> Activation | None:
    """Return the last activation for exactly this scope; None without one."""
    return next((each for each in reversed(activations) if each.scope == scope), None)


def own_rules(activations: Sequence[Activation]) -> dict[str, Activation]:
    """Return the apps with rules of their own, in the order of their names, and the activations of these."""
    last = {each.scope: each for each in activations if each.restates is None and each.scope != ALL_APPS}
    return {app_id: each for app_id, each in sorted(last.items()) if each.digest != SHARED_RULES}


def active_for(activations: Sequence[Activation], scope: str) -> Activation | None:
    """Return the activation whose rules apply to an app: its own newest one, or else that of all apps."""
    own = newest(activations, scope)
    return newest(activations, ALL_APPS) if own is None or own.digest == SHARED_RULES else own


def changed_files(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> dict[str, list[str]]:
    """Return the names of the files that were ``added``, ``changed`` and ``removed``."""
    return {
        "added": sorted(after.keys() - before.keys()),
        "changed": sorted(name for name in before.keys() & after.keys() if before[name] != after[name]),
        "removed": sorted(before.keys() - after.keys()),
    }


def digest_of(files: Mapping[str, bytes]) -> str:
    """Return the SHA-256 of files by their paths from the root, so moved rules keep their digest."""
    digest = hashlib.sha256()
    for name, data in sorted(files.items()):
        for part in (name.encode(errors="surrogateescape"), data):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
    return digest.hexdigest()


SHARED_RULES: Final = digest_of({})
"""Of the rule set without files. An app for which it is active follows the rules of all apps. No push makes it active
for anything else."""
