"""Faults of every kind while events flow: whatever happens, graphs end as one serial pass over the log leaves them."""
