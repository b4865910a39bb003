"""The MCP server: memory and context as tools of a model, by the project's client only."""
