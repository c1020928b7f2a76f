"""TLS: the contexts of a server's listeners, renewed when the files change."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from pathlib import Path

from hopline.config.schema import TlsConfig
from hopline.errors import ConfigError
from hopline.files import check_regular
from hopline.ingress.watched_file import Watched

logger = logging.getLogger(__name__)


class TlsFiles:
    """Contexts of one certificate, one for each protocol.

    New connections use a new certificate, and trust the authorities of a new client CA file alone, within a
    second; open ones continue. Each change makes new contexts: OpenSSL only adds keys of another kind and
    authorities to a context, and a session of the old one could be resumed.
    """

    def __init__(self, config: TlsConfig) -> None:
        self._config = config
        self._contexts: dict[str, ssl.SSLContext] = {}
        paths = (config.cert_file, config.key_file, config.client_ca_file)
        self._watched = [Watched(path) for path in paths if path is not None]
        self._is_stale, self._reported = False, ""

    def contexts(self, protocol: str) -> Callable[[], ssl.SSLContext] | None:
        """Return a function that returns the present context of a protocol (ALPN); None where TLS is off.

        Raises: ConfigError: files that are not a certificate and its key, or not certificates.
        """
        if not self._config.enabled:
            return None
        self._contexts[protocol] = _context(self._config, protocol)
        return lambda: self._contexts[protocol]

    def tick(self) -> None:
        """Load changed files, once a second; files that do not fit together are tried again."""
        for watched in self._watched:
            self._is_stale |= watched.changed()
        if not self._is_stale:
            return
        try:
            renewed = {protocol: _context(self._config, protocol) for protocol in self._contexts}
        except ConfigError as error:
            if str(error) != self._reported:
                self._reported = str(error)
                logger.error("the changed TLS files were not loaded: %s", error)
            return
        self._contexts = renewed
        self._is_stale, self._reported = False, ""
        logger.info("TLS files reloaded: new connections use %s", self._config.cert_file)


def _context(config: TlsConfig, protocol: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols([protocol])
    context.options |= ssl.OP_NO_RENEGOTIATION
    # One group, which all clients have (RFC 8446, 9.1); Python cannot set a list. By default a client may
    # choose ffdhe8192, which takes 200 ms of the loop. One that guesses another needs a further round trip.
    context.set_ecdh_curve("prime256v1")
    assert config.cert_file is not None
    wrong = (
        f"tls.cert_file: {str(config.cert_file)!r} and tls.key_file do not hold a PEM certificate and key"
    )
    try:
        for path in filter(None, (config.cert_file, config.key_file)):
            check_regular(path)  # the loop would wait for a pipe
        # With a password, OpenSSL does not ask the terminal for that of an encrypted key, on the loop.
        context.load_cert_chain(config.cert_file, config.key_file, password="")
        if config.client_ca_file is not None:
            wrong = f"tls.client_ca_file: {str(config.client_ca_file)!r} does not hold PEM certificates"
            check_regular(config.client_ca_file)
            context.load_verify_locations(config.client_ca_file)
            is_required = config.client_certificates == "required"
            context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"{wrong}: {error}") from None
    _check_time(context, config.cert_file)
    return context


def _check_time(context: ssl.SSLContext, file: Path) -> None:
    """Check by a handshake that a certificate is valid at this time. Raises: ConfigError: it is not."""
    client = ssl.create_default_context(cafile=file)
    client.check_hostname, client.verify_flags = False, ssl.VERIFY_X509_PARTIAL_CHAIN
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    for side in (client.wrap_bio(down, up), context.wrap_bio(up, down, server_side=True)) * 3:
        try:
            side.do_handshake()
        except ssl.SSLError as error:  # 9 and 10: not valid yet, has expired (X509_V_ERR_…)
            if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in (9, 10):
                raise ConfigError(f"tls.cert_file: {str(file)!r}: {error.verify_message}") from None
