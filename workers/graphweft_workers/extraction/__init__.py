"""Extractors: what says which entities and relations there are in a text.

``protocol`` is what any of them promises, ``graphiti`` asks a model by way of graphiti-core, ``shaping`` makes what a
model said fit for an event, and ``factory`` makes the extractor that the settings name.
"""
