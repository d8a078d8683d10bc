"""Device memory: the caching pool behind every tensor."""
