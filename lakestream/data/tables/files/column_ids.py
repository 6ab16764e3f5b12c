"""The field ids of the columns of a stream's table (T1). They are for ever: every file knows its columns by them.

They are the ids that any catalog gives to a new table of these columns (docs/decisions/0004-field-ids.md). Columns that
come later (a value with a schema) start at FIRST_FREE_ID. This module needs no Arrow: the catalog imports it, too.
"""

PARTITION_ID = 1
OFFSET_ID = 2
TIMESTAMP_ID = 3
KEY_ID = 4
HEADERS_ID = 5
FLAGS_ID = 6
ORIGINAL_ID = 7
VALUE_ID = 8
HEADER_ID = 9
HEADER_KEY_ID = 10
HEADER_VALUE_ID = 11
FIRST_FREE_ID = 100

STREAM_COLUMN_IDS = frozenset(range(PARTITION_ID, VALUE_ID + 1))
"""The columns that make a row a record: no other engine changes or drops them (T13)."""
