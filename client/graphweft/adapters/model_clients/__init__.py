"""Model clients in a plain loop: events of model calls and tools out, context into the prompt, memories kept."""

from graphweft.adapters.model_clients.wrapping import wrap_anthropic, wrap_litellm, wrap_openai

__all__ = ("wrap_anthropic", "wrap_litellm", "wrap_openai")
