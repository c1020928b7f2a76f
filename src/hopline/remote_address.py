"""Opens what a URL names, through fsspec: s3:// (s3fs), gs:// (gcsfs), abfs:// (adlfs), https:// …

Each driver takes its credentials and endpoint from where it always does: environment, files, the role of
the machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hopline.config.setting import did_you_mean
from hopline.config.urls import shown
from hopline.errors import ConfigError


def is_address(text: str | Path) -> bool:
    """Whether a text is a URL, not the path of a folder."""
    return isinstance(text, str) and "://" in text


def open_address(url: str, setting: str) -> tuple[Any, str]:
    """The driver for a URL, and the path in its terms. Nothing is connected to yet.

    Args:
        setting: the setting or argument that the URL is of, for errors.

    Raises:
        ConfigError: an unknown scheme, an address that its driver refuses, or a missing driver (names the
            package).
    """
    try:
        import fsspec
        from fsspec.registry import known_implementations
    except ImportError:
        raise ConfigError(
            f"{setting}: {shown(url)}: URLs need the package fsspec; install hopline[remote]"
        ) from None
    scheme = url.partition("://")[0]
    try:
        _ = urlsplit(url).port  # raises where the host or the port is none
        # Nothing remembered: a file that was uploaded a moment ago must be seen.
        files, root = fsspec.core.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
    except ImportError as error:
        module = known_implementations.get(scheme, {}).get("class", "").partition(".")[0]
        package = f"the package {module}" if module not in ("", "fsspec") else f"more ({error})"
        raise ConfigError(f"{setting}: {scheme}:// needs {package}, which is not installed") from None
    except Exception as error:  # drivers raise whatever their libraries do
        known = sorted({*fsspec.available_protocols(), "s3", "gs"})
        near = "" if scheme in known else did_you_mean(scheme, known)
        raise ConfigError(f"{setting}: {shown(url)} cannot be used: {error}{near}") from None
    return files, root
