"""The local server that holds both the event log and the graph."""
