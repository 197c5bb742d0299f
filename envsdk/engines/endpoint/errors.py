"""Errors for requests that cannot be answered, in OpenAI's error format."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """A request is refused, or its reply failed."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        """Short and stable, such as `context_length_exceeded`."""
        self.param = param
        """The field of the request that is to blame."""

    def body(self) -> dict[str, Any]:
        """The JSON of the answer."""
        return {
            "error": {
                "message": self.message,
                "type": _TYPES.get(
                    self.status, "server_error" if self.status >= 500 else "invalid_request_error"
                ),
                "param": self.param,
                "code": self.code,
            }
        }


_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}


def unsupported(param: str, why: str) -> ApiError:
    """A parameter, or a value of one, that OpenAI's API has and this endpoint does not."""
    return ApiError(400, f"`{param}` {why}", code="unsupported_parameter", param=param)


def invalid(param: str | None, message: str) -> ApiError:
    return ApiError(400, message, code="invalid_value", param=param)
