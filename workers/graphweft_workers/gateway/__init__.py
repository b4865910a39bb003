"""The HTTP gateway, for runtimes without a Python client. It depends on the client only."""
