"""Keeps secrets out of all text that people read: log lines, errors, listings of settings.

Passwords inside URLs are masked wherever a URL is shown. Secrets that are known by value (properties of a catalog, keys
of a store) are masked in every text that contains them.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote

MASK: Final = "********"
SHORTEST: Final = 4
"""Shorter values are not masked in texts: ordinary words contain them."""

_STORE_VARIABLES: Final = ("AWS_", "AZURE_", "GOOGLE_", "PYICEBERG_")
_SECRET_NAME: Final = (
    r"(?:password|passwd|secret|token|credential|signature|sig|key|authorization|connection[._-]?string|account[._-]json)s?"
)
_ACCOUNT: Final = r"(?:(?<=sas-token)\.[a-z0-9]+|\.[\w-]+\.(?:blob|dfs)\.[\w.-]+)"
"""Azure's names go on with the account that the secret is for: `fs.azure.account.key.ME.dfs.core.windows.net`."""
_NAMES: Final = re.compile(rf"(?:{_SECRET_NAME}|\bsas(?:\.[\w-]+)?){_ACCOUNT}?$", re.IGNORECASE)
_PUBLIC: Final = re.compile(r"(?<!secret[._-])access[._-]key$", re.IGNORECASE)
"""The name of a key that is public: it names the client."""
_USERINFO: Final = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s/:@\"']*):[^\s\"']*@", re.IGNORECASE)
"""Up to the last @, since a password may contain a slash."""
_QUERY: Final = re.compile(rf"([?&;][\w.-]*{_SECRET_NAME}=)[^\s&\"']+", re.IGNORECASE)


def is_secret_name(name: str) -> bool:
    """Whether a property or variable of this name holds a secret."""
    return _NAMES.search(name) is not None and _PUBLIC.search(name) is None


def has_password(url: str) -> bool:
    """Whether a URL carries a secret itself: a password before its host, or one in its query."""
    return mask_urls(url) != url


def mask_urls(text: str) -> str:
    """The text, with the passwords of the URLs in it masked. A container before an @ (Azure) is no password."""
    return _QUERY.sub(rf"\g<1>{MASK}", _USERINFO.sub(rf"\g<1>:{MASK}@", text))


def secrets_in(properties: Mapping[str, str]) -> list[str]:
    """The values of those properties whose names say that they are secret, and passwords in the URLs of others."""
    found = [form for name, value in properties.items() if is_secret_name(name) for form in _forms(value)]
    for value in properties.values():
        passwords = [match.split(":", 2)[2].removesuffix("@") for match in _matches(value)]
        found += [form for password in passwords for form in (password, unquote(password))]
    return [value for value in dict.fromkeys(found) if len(value) >= SHORTEST]


def _forms(value: str) -> tuple[str, ...]:
    """A secret, and the part of it that may be shown alone: behind ID: or behind a word such as Bearer."""
    return value, value.partition(":")[2], value.partition(" ")[2].strip()


def store_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that clients of stores and catalogs read."""
    return {name: value for name, value in environ.items() if name.startswith(_STORE_VARIABLES)}


def read_secret(path: Path) -> str:
    """The value in a secret's file. Its lines count as if they had commas between them; # begins a comment line.

    Raises OSError or UnicodeDecodeError.
    """
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    return ",".join(line for line in lines if line and not line.startswith("#"))


def _matches(url: str) -> list[str]:
    return [match.group(0) for match in _USERINFO.finditer(url)]


class Redactor:
    """Masks known secrets, and the passwords of all URLs."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        spelled = {form for secret in secrets if len(secret) >= SHORTEST for form in (secret, json.dumps(secret)[1:-1])}
        longest_first = sorted(spelled, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def __call__(self, text: str) -> str:
        return mask_urls(self._known.sub(MASK, text) if self._known is not None else text)
