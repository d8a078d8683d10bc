"""The reference driver: Triton's language over numpy and host memory. Slow and right; the oracle of every other
backend."""
