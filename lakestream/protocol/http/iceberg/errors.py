"""The catalog's errors in the terms of the Iceberg REST protocol.

Clients take 4xx as a definite no, and 5xx of a commit as an unknown outcome. 503 is sent only when certainly nothing
was done, so that clients can try again (T17).
"""

from starlette.responses import JSONResponse, Response

from lakestream.data.tables.foreign.allowed_changes import Refused
from lakestream.data.tables.iceberg.metadata.documents import Conflict
from lakestream.data.tables.iceberg.metadata.schemas import Invalid
from lakestream.data.tables.iceberg.metadata.view_metadata import InvalidArgument
from lakestream.errors import Corrupt, Fenced, Halted, Missing, Rejected, Retry, Unknown
from lakestream.model.reasons import No, Reason


class CatalogError(Exception):
    """An error that is the answer to a request."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


_REASONS: dict[int, tuple[int, str]] = {
    Reason.NAMESPACE_EXISTS: (409, "AlreadyExistsException"),
    Reason.TABLE_EXISTS: (409, "AlreadyExistsException"),
    Reason.NAMESPACE_NOT_EMPTY: (409, "NamespaceNotEmptyException"),
    Reason.UNKNOWN_NAMESPACE: (404, "NoSuchNamespaceException"),
    Reason.UNKNOWN_TABLE: (404, "NoSuchTableException"),
    Reason.VIEW_EXISTS: (409, "AlreadyExistsException"),
    Reason.UNKNOWN_VIEW: (404, "NoSuchViewException"),
    Reason.STALE_PREMISE: (409, "CommitFailedException"),
    Reason.TABLE_BOUND: (403, "ForbiddenException"),
    Reason.TOPIC_HELD: (403, "ForbiddenException"),
    Reason.INVALID_REQUEST: (400, "BadRequestException"),
    Reason.MALFORMED: (400, "BadRequestException"),
    Reason.NEWER_LEVEL: (503, "ServiceUnavailableException"),
}
_ERRORS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], int, str], ...] = (
    (InvalidArgument, 400, "IllegalArgumentException"),
    (Invalid, 400, "BadRequestException"),
    (Rejected, 400, "BadRequestException"),
    (Conflict, 409, "CommitFailedException"),
    (Refused, 403, "ForbiddenException"),
    ((Retry, Fenced, Halted), 503, "ServiceUnavailableException"),
    (Unknown, 500, "CommitStateUnknownException"),
    (Corrupt, 500, "InternalServerError"),
)


def bad_request(message: str) -> CatalogError:
    return CatalogError(400, "BadRequestException", message)


def unprocessable(message: str) -> CatalogError:
    return CatalogError(422, "UnprocessableEntityException", message)


def no_such_table(name: str) -> CatalogError:
    return CatalogError(404, "NoSuchTableException", f"Table does not exist: {name}")


def no_such_view(name: str) -> CatalogError:
    return CatalogError(404, "NoSuchViewException", f"View does not exist: {name}")


def no_such_namespace(name: str) -> CatalogError:
    return CatalogError(404, "NoSuchNamespaceException", f"Namespace does not exist: {name}")


def of_refusal(no: No) -> CatalogError:
    """The error for a command that `apply` refused."""
    status, kind = _REASONS.get(no.reason, (500, "InternalServerError"))
    return CatalogError(status, kind, no.message)


def of_exception(error: Exception) -> CatalogError | None:
    """The error for an exception; None if it is unexpected."""
    if isinstance(error, CatalogError):
        return error
    if isinstance(error, Missing):
        told = f"Failed to open input stream for file: {error}, the metadata file is missing"
        return CatalogError(404, "NotFoundException", told)
    for kinds, status, kind in _ERRORS:
        if isinstance(error, kinds):
            return CatalogError(status, kind, str(error))
    return None


def answer_of(error: CatalogError, without_body: bool = False) -> Response:
    headers = {"retry-after": "1"} if error.status == 503 else None
    if without_body:
        return Response(status_code=error.status, headers=headers)
    body = {"error": {"message": str(error), "type": error.kind, "code": error.status}}
    return JSONResponse(body, status_code=error.status, headers=headers)
