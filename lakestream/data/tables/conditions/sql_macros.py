"""Macros that SQL over topics has beside DuckDB's own functions, in queries and in conditions."""

MACROS = (
    "CREATE MACRO text(bytes) AS coalesce(try(decode(bytes)), bytes::VARCHAR)",
    "CREATE MACRO json(bytes) AS try_cast(text(bytes) AS JSON)",
    """CREATE MACRO header(headers, name) AS
       list_filter(headers, lambda one: one.key = name)[-1].value""",
)
