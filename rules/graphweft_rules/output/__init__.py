"""Formats of context, packing into a token budget, and token counting."""
