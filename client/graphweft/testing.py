"""Tests of rules: what they make of recorded events, without a server. It needs the extra ``worker``."""

import sys

__all__ = (
    "EventDifference",
    "EventFault",
    "EventMutation",
    "EventReplay",
    "EventSkip",
    "RuleReplay",
    "replay",
)

if sys.version_info >= (3, 12):
    try:
        from graphweft_workers.testing.rule_replay import (
            EventDifference,
            EventFault,
            EventMutation,
            EventReplay,
            EventSkip,
            RuleReplay,
            replay,
        )
    except ModuleNotFoundError as error:
        if (error.name or "graphweft").startswith("graphweft"):
            raise
        raise ImportError(
            f"graphweft.testing needs {error.name!r}, which a base install leaves out: pip install 'graphweft[worker]'"
        ) from error
else:
    raise ImportError("graphweft.testing needs Python 3.12 or later, as workers do")
