import ssl

import httpx
import httpx2
import pytest


def context_of(client):
    return client._transport._pool._ssl_context


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_clients_share_the_context_of_the_usual_authorities_and_no_other(library, monkeypatch, tmp_path):
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    contexts = []
    for options in ({}, {}, {"verify": False}, {"verify": own}, {"trust_env": False}):
        with library.Client(**options) as client:
            contexts.append(context_of(client))
    usual, again, unverified, given, without_environment = contexts
    assert usual is again
    assert usual.verify_mode == ssl.CERT_REQUIRED
    assert unverified.verify_mode == ssl.CERT_NONE
    assert given is own
    assert len({*map(id, contexts)}) == 4
    assert without_environment.check_hostname
