"""The mock cluster of Kafka of `hopline[kafka]`, for tests of what reads and writes topics."""

import runpy

if __name__ == "__main__":
    runpy.run_module("hopline_brokers.testing.kafka_mock", run_name="__main__")
