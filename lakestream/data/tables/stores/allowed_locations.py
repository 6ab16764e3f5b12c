"""The setting `catalog_allowed_locations`: folders outside the data that users' own tables may lie in."""

import re

from lakestream.model.catalog.names import canonical, overlap
from lakestream.settings import Settings, SettingsError, data_uri, is_url, sqlite_path

NAME = "catalog_allowed_locations"
_PLAIN = re.compile(r"(file:///|(?!file:)[a-z][a-z0-9]*://[^/])[^?#%\\\\]*")


def allowed_locations(settings: Settings) -> tuple[str, ...]:
    """The folders as URIs without a slash at their ends. Raises SettingsError if one cannot be."""
    log = sqlite_path(settings.metadata)
    ours = [data_uri(settings), *([f"file://{log.absolute().parent}"] if log is not None else [])]
    places = [place.strip() for place in settings.catalog_allowed_locations.split(",") if place.strip()]
    return tuple(_checked(place, ours) for place in places)


def _checked(place: str, ours: list[str]) -> str:
    uri = canonical(place if is_url(place) or place.startswith("file:") else f"file://{place}").rstrip("/")
    if _PLAIN.fullmatch(f"{uri}/") is None or any(step in (".", "..") for step in uri.split("/")):
        raise SettingsError(f"{NAME}: {place!r} is no folder; use a full /path or s3://BUCKET/PREFIX")
    if any(overlap(uri, canonical(own)) for own in ours):
        raise SettingsError(f"{NAME}: {place!r} overlaps the folder of the data or of the command log")
    return uri
