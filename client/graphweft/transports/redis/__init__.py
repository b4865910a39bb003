"""The client's transport over Redis Streams."""
