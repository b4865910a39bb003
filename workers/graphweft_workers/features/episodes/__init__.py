"""Texts and documents that a model reads into entities and relations."""
