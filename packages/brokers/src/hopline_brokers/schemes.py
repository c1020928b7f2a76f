"""The classes of each broker, as Hopline finds them by the scheme of an address; nothing is imported."""

from hopline.brokers.registry import Broker

KAFKA = Broker(
    "hopline_brokers.kafka_source:KafkaSource",
    "hopline_brokers.kafka_queue:KafkaQueue",
    "hopline_brokers.kafka_sink:KafkaSink",
    "kafka",
)
REDIS = Broker(
    "hopline_brokers.redis_source:RedisSource",
    "hopline_brokers.redis_queue:RedisQueue",
    "hopline_brokers.redis_sink:RedisSink",
    "redis-streams",
)
NATS = Broker(
    "hopline_brokers.nats_source:NatsSource",
    "hopline_brokers.nats_queue:NatsQueue",
    "hopline_brokers.nats_sink:NatsSink",
    "nats",
)
