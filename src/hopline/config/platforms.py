"""Settings from environment variables of serving platforms: Vertex AI's custom containers.

Vertex AI says on which port a container must listen, and at which paths it is probed and asked. Amazon
SageMaker has fixed ones (port 8080, /ping, /invocations) and says nothing: they are set as
`server.http_port`, `server.health_route` and `server.predict_route`.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Variable of Vertex AI -> the setting.
VERTEX = {
    "AIP_HTTP_PORT": "server.http_port",
    "AIP_HEALTH_ROUTE": "server.health_route",
    "AIP_PREDICT_ROUTE": "server.predict_route",
}


def platform_settings(env: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """path -> (value, variable): what Vertex AI states; nothing where it does not run this container."""
    return {path: (env[name], name) for name, path in VERTEX.items() if name in env}
