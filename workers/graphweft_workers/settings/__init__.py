"""What a deployment is told: all settings, and the places that they come from."""
