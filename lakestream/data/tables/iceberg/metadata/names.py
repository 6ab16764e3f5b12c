"""The name and the packing of a table's metadata file: plain JSON, or gzip where the table's property asks for it.

The names are those of Iceberg's reference implementation, `VERSION-UUID.metadata.json` and
`VERSION-UUID.gz.metadata.json`. Our readers decide by the bytes and not by the name, so a packed file of any name can
be read.
"""

import zlib
from collections.abc import Mapping

from lakestream.errors import Corrupt

CODEC_PROPERTY = "write.metadata.compression-codec"
ENDING = ".metadata.json"
GZIP = "gzip"
PLAIN = "none"
GZIP_LEVEL = 4
"""Higher ones take twice the time for a few percent."""
METADATA_BYTES_MAX = 256 * 1024 * 1024
_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW = 31


def metadata_ending(properties: Mapping[str, str]) -> str:
    """The end of a new metadata file's name, for a table with these properties."""
    return f".gz{ENDING}" if _is_gzip(properties) else ENDING


def is_metadata_file(uri: str) -> bool:
    return uri.endswith(ENDING)


def packed(data: bytes, properties: Mapping[str, str]) -> bytes:
    """A metadata file's bytes, as the table's property wants them; the same for the same JSON."""
    if not _is_gzip(properties):
        return data
    packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
    return packer.compress(data) + packer.flush()


def unpacked(data: bytes) -> bytes:
    """The JSON in a metadata file. Raises Corrupt."""
    if data[:2] != _MAGIC:
        return data
    opener = zlib.decompressobj(_GZIP_WINDOW)
    try:
        found = opener.decompress(data, METADATA_BYTES_MAX)
    except zlib.error as error:
        raise Corrupt(f"a table's metadata cannot be unpacked: {error}") from error
    if opener.unconsumed_tail:
        raise Corrupt(f"a table's metadata has more than {METADATA_BYTES_MAX:,} bytes")
    if not opener.eof:
        raise Corrupt("a table's metadata is cut short")
    return found


def _is_gzip(properties: Mapping[str, str]) -> bool:
    return properties.get(CODEC_PROPERTY, "").lower() == GZIP
