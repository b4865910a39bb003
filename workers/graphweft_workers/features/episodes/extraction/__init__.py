"""Extractors, which read entities and relations from text."""
