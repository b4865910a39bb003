"""A gateway in place of the bus: events and context requests over HTTP, with a token."""
