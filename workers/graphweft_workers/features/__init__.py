"""What is built on the engine: one folder per feature, registered by `roles`."""
