"""Log lines on stderr, as text or JSON."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Sequence

from hopline.config.schema import LogConfig

#: Attribute of a log record with its request id, set by `extra={"request_id": ...}`.
_ABOUT = ("request_id", "model", "version")


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and request id and traceback if any."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in _ABOUT if getattr(record, name, "")}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def configure_logs(config: LogConfig, packages: Sequence[str] = ("hopline", "turnserve")) -> None:
    """Send all that these packages log to stderr as configured; others log below "hopline" for that."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter()
        if config.format == "json"
        else logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    )
    for name in packages:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(config.level.upper())
        logger.propagate = False
