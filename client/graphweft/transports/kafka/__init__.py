"""The client's transport over Kafka."""
