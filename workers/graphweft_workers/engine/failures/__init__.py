"""What has no effect: skips, dead letters, quarantine; what is set aside, retried, corrected and dropped."""
