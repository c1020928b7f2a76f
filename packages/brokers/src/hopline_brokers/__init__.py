"""Kafka, Redis Streams and NATS JetStream: requests for a server, and changes of a live graph.

`schemes.py` is what Hopline finds. A broker has a file for its connection (`kafka.py`, `redis_stream.py`,
`nats_stream.py`), and one each for the source, the queue and the sink; `condition.py` is their base.
`queue_server.py` answers requests. `stream/` follows changes: consumer.py, batch.py and outcomes.py first.
"""

__version__ = "0.1.0"
