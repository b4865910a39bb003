"""AG2 1.x (``ag2``): events of agents and of a network's channels, and context in the prompt of each model call."""

from graphweft_runtimes.ag2.adapter import AG2Adapter, ChannelExpired, ExpectationViolated

__all__ = ("AG2Adapter", "ChannelExpired", "ExpectationViolated")
