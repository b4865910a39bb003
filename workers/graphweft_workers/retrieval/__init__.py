"""Search in an app's graph: by vector, by words, by both, or the latest; within a scope or in an index."""
