"""Which rules match an event or a request, and the parameters of their queries."""
