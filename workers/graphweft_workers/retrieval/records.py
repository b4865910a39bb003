"""Labels of the nodes that features write and searches return."""

from __future__ import annotations

from typing import Final

MEMORY_LABEL: Final = "Memory"
SUMMARY: Final = "ConversationSummary"
FACT: Final = "Fact"
PREFERENCE: Final = "Preference"
STATEMENT: Final = "Statement"
PROFILE: Final = "UserProfile"
EPISODE: Final = "Episode"
ENTITY: Final = "Entity"
RELATION: Final = "Relation"
