"""What is worked out of memories beside the log's own way: jobs that read events and put new ones on the bus."""
