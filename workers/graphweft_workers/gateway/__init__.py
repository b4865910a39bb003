"""The HTTP gateway: events in, context out, for runtimes that have no client of their own. It knows the client only."""
