"""The adapter for FastStream applications. Importing it imports no FastStream; using a name of ``adapter`` does."""

from typing import TYPE_CHECKING

from graphweft_contracts.channels import EFFECTS as EFFECTS_STREAM
from graphweft_contracts.channels import EFFECTS_TOPIC
from graphweft_contracts.effects import Effects
from graphweft_contracts.lazy_names import lazy_names

if TYPE_CHECKING:
    from graphweft_runtimes.faststream.adapter import AgentContext, FastStreamAdapter, variables_of_headers

__all__ = (
    "EFFECTS_STREAM",
    "EFFECTS_TOPIC",
    "AgentContext",
    "Effects",
    "FastStreamAdapter",
    "variables_of_headers",
)

__getattr__, __dir__ = lazy_names(
    __name__,
    {"graphweft_runtimes.faststream.adapter": ("AgentContext", "FastStreamAdapter", "variables_of_headers")},
)
