"""What a process can be, put together from drivers, features and the engine."""
