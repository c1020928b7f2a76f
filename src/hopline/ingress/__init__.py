"""Authentication and rate limits: keys, tokens, permissions. It does not depend on HTTP or gRPC."""
