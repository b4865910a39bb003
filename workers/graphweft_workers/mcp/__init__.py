"""The MCP server: memory and context as tools for a model. It depends on the client only."""
