"""Reads events, plans and applies mutations exactly once and in order. It knows ports only."""
