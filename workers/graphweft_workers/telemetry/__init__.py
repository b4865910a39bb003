"""What a role says of itself while it works: metrics and traces. The SDK of OpenTelemetry is at its edge alone."""
