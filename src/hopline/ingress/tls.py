"""The TLS contexts of a server's listeners, and their renewal when the files change."""

from __future__ import annotations

import logging
import ssl

from hopline.config.schema import TlsConfig
from hopline.errors import ConfigError
from hopline.ingress.watched import Watched
from hopline.process.listeners import tls_context

logger = logging.getLogger(__name__)


class TlsFiles:
    """Contexts of one certificate, for several listeners.

    New connections use a new certificate within a second; open ones continue. Authorities in a new client
    CA file are added to those that are trusted: removed ones stay trusted until a restart.

    Args:
        config: section `tls`.
    """

    def __init__(self, config: TlsConfig) -> None:
        self._config = config
        self._contexts: list[ssl.SSLContext] = []
        paths = (config.cert_file, config.key_file, config.client_ca_file)
        self._watched = [Watched(path) for path in paths if path is not None]
        self._is_stale = False
        self._reported = ""

    def context(self, protocol: str) -> ssl.SSLContext | None:
        """Return a new context for a protocol (ALPN), None where TLS is off.

        Raises: ConfigError: files that do not fit together.
        """
        context = tls_context(self._config, protocol)
        if context is not None:
            self._contexts.append(context)
        return context

    def tick(self) -> None:
        """Load changed files, once a second; files that do not fit together are tried again."""
        for watched in self._watched:
            self._is_stale |= watched.changed()
        if not self._is_stale:
            return
        config = self._config
        assert config.cert_file is not None
        try:
            renewed = tls_context(config)
            for context in self._contexts:
                context.load_cert_chain(config.cert_file, config.key_file)
                if config.client_ca_file is not None:
                    context.load_verify_locations(config.client_ca_file)
        except (ConfigError, OSError) as error:  # SSLError is one: a file was replaced after the check
            if str(error) != self._reported:
                self._reported = str(error)
                logger.error("the changed TLS files were not loaded: %s", error)
            return
        self._is_stale, self._reported = False, ""
        logger.info("TLS files reloaded: new connections use %s", config.cert_file)
        if renewed is not None and self._contexts:
            removed = set(self._contexts[0].get_ca_certs(True)) - set(renewed.get_ca_certs(True))
            if removed:
                logger.warning(
                    "%d certificates of authorities are no longer in tls.client_ca_file: clients of theirs "
                    "are refused only after a restart",
                    len(removed),
                )
