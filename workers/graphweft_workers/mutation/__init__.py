"""From events to effects: duplicates, the plan (pure), and the worker that drives both against bus and graph."""
