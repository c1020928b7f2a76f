"""Kafka, Redis Streams and NATS JetStream: a log to follow, a shared queue, a destination.

`schemes.py` is what Hopline finds. A broker has a file for its connection (`kafka.py`, `redis_stream.py`,
`nats_stream.py`), and one each for the source, the queue and the sink.
"""

__version__ = "0.1.0"
