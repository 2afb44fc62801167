"""What lasts: SQL is the truth, the event log in Redis its fast copy."""
