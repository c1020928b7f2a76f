"""Who may ask: keys, tokens, permissions and rates; knows nothing of HTTP and gRPC."""
