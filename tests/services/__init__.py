"""Real servers for the tests, started as processes of their own: one server a file."""
