"""The settings by which engines find the store's files: its address, never credentials.

Credentials stay with each client: its own settings, or its own environment.
"""

from collections.abc import Mapping

_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")


def engine_settings(root: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Properties of Iceberg's file I/O for a warehouse at `root`, by the names that Java's and PyIceberg's share."""
    if not root.startswith(("s3://", "s3a://")):
        return {}
    found: dict[str, str] = {}
    if endpoint := _first(environ, _ENDPOINTS):
        # Stores other than Amazon's seldom have a host name for each bucket.
        found |= {"s3.endpoint": endpoint, "s3.path-style-access": "true"}
    if region := _first(environ, _REGIONS):
        found |= {"s3.region": region, "client.region": region}
    return found


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environ[name] for name in names if environ.get(name)), "")
