"""What texts from outside hold: words, secrets, times, YAML, and how much of it."""
