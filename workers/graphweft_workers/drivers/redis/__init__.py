"""Redis Streams as the event log and as the queue of context requests."""
