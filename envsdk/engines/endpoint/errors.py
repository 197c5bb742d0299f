"""Errors for requests that cannot be answered, in OpenAI's error format."""

from __future__ import annotations

from collections.abc import Mapping
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

    def renamed(self, names: Mapping[str, str]) -> ApiError:
        """The same, with the field as its protocol calls it: `names` has chat's names for some."""
        param = self.param
        name = next((each for each in names if param and f"{param}.".startswith(f"{each}.")), None)
        if param is None or name is None:
            return self
        told = param.replace(name, names[name], 1)
        message = self.message.replace(f"`{param}`", f"`{told}`")
        return ApiError(self.status, message, code=self.code, param=told)


_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}


def unsupported(param: str, why: str) -> ApiError:
    """A parameter, or a value of one, that OpenAI's API has and this endpoint does not."""
    return ApiError(400, f"`{param}` {why}", code="unsupported_parameter", param=param)


def invalid(param: str | None, message: str) -> ApiError:
    return ApiError(400, message, code="invalid_value", param=param)
