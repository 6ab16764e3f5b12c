"""The OpenAPI document of the catalog: paths, parameters, bodies and answers, for tools that check it."""

from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]

_TEXT: Json = {"type": "string"}
_TEXTS: Json = {"type": "array", "items": _TEXT}
_MAP: Json = {"type": "object", "additionalProperties": _TEXT}
_ANY: Json = {"type": "object"}
# Optional fields may be null as well.
_OPTIONAL_TEXT: Json = {"type": ["string", "null"]}
_OPTIONAL_TEXTS: Json = {**_TEXTS, "type": ["array", "null"]}
_OPTIONAL_MAP: Json = {**_MAP, "type": ["object", "null"]}
_OPTIONAL: Json = {"type": ["object", "null"]}
_NAMESPACE: Json = {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1}
_IDENTIFIER: Json = {
    "type": "object", "required": ["namespace", "name"], "properties": {"namespace": _NAMESPACE, "name": _TEXT},
}  # fmt: skip
_COMMIT: Json = {
    "type": "object",
    "required": ["requirements", "updates"],
    "properties": {
        "identifier": {**_IDENTIFIER, "type": ["object", "null"]},
        "requirements": {
            "type": "array",
            "items": {"type": "object", "required": ["type"], "properties": {"type": _TEXT, "uuid": _TEXT}},
        },
        "updates": {
            "type": "array", "items": {"type": "object", "required": ["action"], "properties": {"action": _TEXT}},
        },
    },
}  # fmt: skip
_VIEW_VERSION: Json = {
    "type": "object",
    "required": ["version-id", "timestamp-ms", "schema-id", "summary", "representations", "default-namespace"],
    "properties": {
        "version-id": {"type": "integer"}, "timestamp-ms": {"type": "integer"}, "schema-id": {"type": "integer"},
        "summary": _MAP, "default-namespace": _TEXTS, "default-catalog": _OPTIONAL_TEXT,
        "representations": {
            "type": "array",
            "items": {
                "type": "object", "required": ["type", "sql", "dialect"],
                "properties": {"type": {"type": "string", "enum": ["sql"]}, "sql": _TEXT, "dialect": _TEXT},
            },
        },
    },
}  # fmt: skip
_SCHEMA: Json = {
    "type": "object",
    "required": ["type", "fields"],
    "properties": {
        "type": {"type": "string", "enum": ["struct"]},
        "fields": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["id", "name", "required", "type"],
                "properties": {
                    "id": {"type": "integer"}, "name": _TEXT, "required": {"type": "boolean"},
                    "type": {"type": "string", "enum": ["int", "long", "string", "binary", "boolean", "timestamptz"]},
                },
            },
        },
    },
}  # fmt: skip

_BODIES: dict[tuple[str, str], Json] = {
    ("POST", "/v1/namespaces"): {
        "type": "object",
        "required": ["namespace"],
        "properties": {"namespace": _NAMESPACE, "properties": _OPTIONAL_MAP},
    },
    ("POST", "/v1/namespaces/{namespace}/properties"): {
        "type": "object", "properties": {"removals": _OPTIONAL_TEXTS, "updates": _OPTIONAL_MAP},
    },
    ("POST", "/v1/namespaces/{namespace}/tables"): {
        "type": "object",
        "required": ["name", "schema"],
        "properties": {
            "name": _TEXT, "location": _OPTIONAL_TEXT, "schema": _SCHEMA, "partition-spec": _OPTIONAL,
            "write-order": _OPTIONAL, "stage-create": {"type": "boolean"}, "properties": _OPTIONAL_MAP,
        },
    },
    ("POST", "/v1/namespaces/{namespace}/register"): {
        "type": "object",
        "required": ["name", "metadata-location"],
        "properties": {"name": _TEXT, "metadata-location": _TEXT, "overwrite": {"type": "boolean"}},
    },
    ("POST", "/v1/namespaces/{namespace}/tables/{table}"): _COMMIT,
    ("POST", "/v1/tables/rename"): {
        "type": "object",
        "required": ["source", "destination"],
        "properties": {"source": _IDENTIFIER, "destination": _IDENTIFIER},
    },
    ("POST", "/v1/namespaces/{namespace}/views"): {
        "type": "object",
        "required": ["name", "schema", "view-version"],
        "properties": {
            "name": _TEXT, "location": _OPTIONAL_TEXT, "schema": _SCHEMA, "view-version": _VIEW_VERSION,
            "properties": _OPTIONAL_MAP,
        },
    },
    ("POST", "/v1/namespaces/{namespace}/views/{view}"): _COMMIT,
    ("POST", "/v1/namespaces/{namespace}/register-view"): {
        "type": "object",
        "required": ["name", "metadata-location"],
        "properties": {"name": _TEXT, "metadata-location": _TEXT},
    },
    ("POST", "/v1/views/rename"): {
        "type": "object",
        "required": ["source", "destination"],
        "properties": {"source": _IDENTIFIER, "destination": _IDENTIFIER},
    },
    ("POST", "/v1/transactions/commit"): {
        "type": "object",
        "required": ["table-changes"],
        "properties": {"table-changes": {"type": "array", "items": _COMMIT}},
    },
}  # fmt: skip
_PAGES: list[Json] = [
    {"name": "pageToken", "in": "query", "schema": _TEXT},
    {"name": "pageSize", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": 999_999_999}},
]
_QUERIES: dict[tuple[str, str], list[Json]] = {
    ("GET", "/v1/namespaces"): [{"name": "parent", "in": "query", "schema": _TEXT}, *_PAGES],
    ("GET", "/v1/namespaces/{namespace}/tables"): _PAGES,
    ("GET", "/v1/namespaces/{namespace}/views"): _PAGES,
    ("GET", "/v1/namespaces/{namespace}/tables/{table}"): [
        {"name": "snapshots", "in": "query", "schema": {"type": "string", "enum": ["all", "refs"]}},
    ],
    ("DELETE", "/v1/namespaces/{namespace}/tables/{table}"): [
        {"name": "purgeRequested", "in": "query", "schema": {"type": "boolean"}},
    ],
}
_NO_CONTENT = ("HEAD", "DELETE")
_DONE_BY_POST = ("/v1/tables/rename", "/v1/views/rename", "/v1/transactions/commit")
_ERROR: Json = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "code"],
            "properties": {"message": _TEXT, "type": _TEXT, "code": {"type": "integer"}},
        }
    },
}


def openapi(routes: Sequence[tuple[str, str]], base: str) -> Json:
    """The document for these (method, path); `base` is where the catalog is mounted."""
    paths: dict[str, Json] = {"/v1/config": {"get": _operation("GET", "/v1/config")}}
    for method, path in routes:
        paths.setdefault(path, {})[method.lower()] = _operation(method, path)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Lakestream's Iceberg REST catalog", "version": "1"},
        "servers": [{"url": base or "/"}],
        "paths": paths,
    }


def _operation(method: str, path: str) -> Json:
    named = [part.strip("{}") for part in path.split("/") if part.startswith("{")]
    parameters = [{"name": name, "in": "path", "required": True, "schema": _TEXT} for name in named]
    empty = method in _NO_CONTENT or path in _DONE_BY_POST
    answers: Json = {"204": {"description": "Done."}} if empty else {"200": _content("The answer.", _ANY)}
    if "snapshots" in str(_QUERIES.get((method, path))):
        answers["304"] = {"description": "It is as you know it."}
    error = {"description": "An error."} if method == "HEAD" else _content("An error.", _ERROR)
    body = _BODIES.get((method, path))
    told: Json = {
        "parameters": parameters + _QUERIES.get((method, path), []),
        "responses": answers | {"default": error},
    }
    if body is not None:
        told["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return told


def _content(description: str, schema: Json) -> Json:
    return {"description": description, "content": {"application/json": {"schema": schema}}}
