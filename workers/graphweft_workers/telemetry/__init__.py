"""What a role says of itself while it works: metrics and traces. OpenTelemetry's SDK is at the edge of it alone."""
