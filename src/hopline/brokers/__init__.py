"""Message brokers: one interface, with Kafka, Redis Streams and NATS JetStream behind it."""
