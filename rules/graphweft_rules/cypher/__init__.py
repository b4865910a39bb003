"""Cypher as rules use it: tokens, clauses, patterns, read/write sets and batch queries."""
