"""What tools show of the event log: entries, their effect, and why they have none. Nothing here writes."""
