"""What the settings name, put together from drivers, features and the engine."""
