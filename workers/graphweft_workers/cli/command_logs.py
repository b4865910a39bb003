"""The logs of a command that ends by itself."""

from __future__ import annotations

import logging

from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.lazy_logger import before_next_entry


def set_up_command_logs(settings: Settings) -> None:
    """Show log entries if the settings name a level; otherwise the command says itself what matters."""
    if "log_level" in settings.model_fields_set:
        _set_up(settings.log_level, settings)
    else:
        logging.getLogger("graphweft").setLevel(logging.CRITICAL)
        before_next_entry(lambda: _set_up("critical", settings))


def _set_up(level: str, settings: Settings) -> None:
    from graphweft_workers.support.logs import set_up_logs  # imports structlog

    set_up_logs(level, settings.log_format)
