"""One file at a URL, uploaded whole through fsspec: s3:// (s3fs), gs:// (gcsfs), abfs:// …

Drivers take credentials and endpoints from their usual places: environment, files, the machine's role.
"""

from __future__ import annotations

import importlib
from typing import IO, Any

from hopline.config.urls import shown
from hopline.errors import SinkError

_LONGEST_MESSAGE = 300


class RemoteFile:
    """A file at a URL that is written in one step.

    Args:
        url: of the file.

    Attributes:
        shown: the URL without possible passwords.

    Raises:
        SinkError: fsspec or the driver of the scheme is not installed, or the scheme is unknown.
    """

    def __init__(self, url: str) -> None:
        scheme = url.partition("://")[0]
        self._url = url
        self.shown = shown(url)
        try:
            fsspec = importlib.import_module("fsspec")
        except ModuleNotFoundError:
            raise SinkError(f"{self.shown}: URLs need fsspec: pip install 'hopline[remote]'") from None
        try:
            self._files, self._path = fsspec.core.url_to_fs(url, use_listings_cache=False)
        except ImportError as error:
            raise SinkError(
                f"{self.shown}: {scheme}:// needs a package that is not installed: {error}"
            ) from None
        except ValueError as error:
            raise SinkError(f"{self.shown} cannot be used: {error}") from None

    def with_part(self, part: str) -> RemoteFile:
        """The file with a part's name before its ending."""
        stem, dot, ending = self._url.rpartition(".")
        return RemoteFile(f"{stem}-{part}{dot}{ending}")

    def check(self) -> None:
        """Check the place, so that a wrong one is reported before hours of work.

        Raises:
            SinkError: the place cannot be reached, or is a folder.
        """
        if self._call(self._files.isdir, self._path):
            raise SinkError(f"{self.shown} is a folder; name a file")

    def put(self, file: IO[bytes]) -> None:
        """Upload an open file's content, replacing existing content in one step.

        Raises:
            SinkError: the upload failed; existing content is unchanged.
        """
        # The file has no name, so that a kill leaves nothing behind: use the path of the descriptor.
        self._call(self._files.put_file, f"/proc/self/fd/{file.fileno()}", self._path)

    def _call(self, function: Any, *args: Any) -> Any:
        """Call a driver; its library may raise any error."""
        try:
            return function(*args)
        except Exception as error:
            reason = str(error).partition("\n")[0][:_LONGEST_MESSAGE]
            raise SinkError(
                f"{self.shown} cannot be written: {type(error).__name__}: {reason}; computed states are "
                "kept: fix this and start the same command again"
            ) from error
