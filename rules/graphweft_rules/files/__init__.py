"""Rule files: YAML with positions, its schema, and what is wrong with it."""
