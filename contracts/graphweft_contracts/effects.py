"""What a worker says of the events of an app that took effect: one message for each app and commit."""

from __future__ import annotations

from typing import Final

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

EFFECTS_DATA: Final = b"data"
"""The field of an entry of a stream that holds the message, as JSON. On a topic it is the value of the record."""


class Effects(BaseModel):
    """The events of an app between two offsets of a partition took effect, and the graph has them on disk.

    The messages of a partition are in the order of the log. After a restart of a worker, events may be in a second
    message. A reader of a later version gets further fields.
    """

    model_config = ConfigDict(defer_build=True, frozen=True, extra="ignore")

    app_id: str
    partition: int
    first: str = Field(description="Offset of the first event, or of the first one without effect.")
    last: str = Field(description="Offset of the last one.")
    events: int = Field(ge=0, description="Events that have a matching rule.")
    mutations: dict[str, int] = Field(
        default={}, description="How many rows each mutation had, by `rule/mutation`; rows that failed are included."
    )
    labels: dict[str, int] = Field(default={}, description="Rows of mutations whose query names the label or type.")
    without_effect: dict[str, int] = Field(
        default={},
        description="Skips and dead letters that were written meanwhile, by the reason in `status`.",
    )
    time: AwareDatetime = Field(description="When the worker wrote the message.")
