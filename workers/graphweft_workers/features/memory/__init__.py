"""Memories, facts, preferences and summaries of users and threads."""
