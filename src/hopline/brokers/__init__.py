"""Message brokers: one seam, and Kafka, Redis Streams and NATS JetStream behind it."""
