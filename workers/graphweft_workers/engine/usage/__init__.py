"""What apps use, and their quotas."""
