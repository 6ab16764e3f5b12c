"""One setting: its row in the table of settings, and how a text or a TOML value becomes its value."""

import re
from dataclasses import dataclass

from lakestream.redaction import MASK, mask_urls

ENVIRONMENT_PREFIX = "LAKESTREAM_"
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

Value = str | int | bool


class SettingsError(ValueError):
    """A setting is unknown or has an impossible value; the message names it and the possible values."""


WHOLE, URL = "whole", "url"
"""How much of a secret setting is hidden where it is shown: all of it, or the password in a URL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of the table of settings."""

    name: str
    kind: type
    default: Value
    doc: str
    group: str
    low: int
    high: int
    choices: tuple[str, ...]
    secret: str
    """WHOLE or URL for a setting that holds a secret: FILE_SUFFIX behind its name gives the file that has it."""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper()

    def shown(self, value: object) -> str:
        """A value as people and clients may see it."""
        text = str(value).lower() if isinstance(value, bool) else str(value)
        return MASK if text and self.secret == WHOLE else mask_urls(text)


_UNITS = {
    "_bytes": {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30},
    "_ms": {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000},
}
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def parsed(row: Setting, value: object, where: str) -> Value:
    """The value; `where` names its source in the error. Raises SettingsError."""
    if row.kind is bool:
        return _parsed_bool(value, where)
    if row.kind is int:
        return _parsed_int(row, value, where)
    if not isinstance(value, str):
        raise SettingsError(f"{where}: expected text" + ("" if row.secret else f", not {value!r}"))
    if row.choices:
        by_lower = {choice.lower(): choice for choice in row.choices}
        if value.lower() not in by_lower:
            raise SettingsError(f"{where}: {value!r} is none of {', '.join(row.choices)}")
        return by_lower[value.lower()]
    return value


def _parsed_bool(value: object, where: str) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word not in _TRUE + _FALSE:
        raise SettingsError(f"{where}: expected true or false, not {value!r}")
    return word in _TRUE


def _parsed_int(row: Setting, value: object, where: str) -> int:
    units = next((units for suffix, units in _UNITS.items() if row.name.endswith(suffix)), {"": 1})
    match = re.fullmatch(r"\s*(-?\d[\d_]*)\s*([a-z]*)\s*", str(value).lower()) if not isinstance(value, bool) else None
    unit = match[2] if match else ""
    if row.name.endswith("_bytes"):
        unit = unit.removesuffix("b").removesuffix("i")
    if match is None or unit not in units:
        hint = f", with a unit if you like ({' '.join(u for u in units if u)})" if len(units) > 1 else ""
        raise SettingsError(f"{where}: expected a whole number{hint}, not {value!r}")
    number = int(match[1]) * units[unit]
    if not row.low <= number <= row.high:
        bounds = f"at least {row.low}" if row.high == INT64_MAX else f"between {row.low} and {row.high}"
        raise SettingsError(f"{where}: must be {bounds}, not {number}")
    return number
