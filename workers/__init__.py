"""The queue side: dramatiq carries and wakes, SQL decides, attempts are coroutines."""
