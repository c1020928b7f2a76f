"""Message brokers: one interface. Packages bring the brokers; `packages/brokers` has three."""
