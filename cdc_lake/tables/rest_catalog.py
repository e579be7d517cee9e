"""A client for REST catalogs with timeouts.

pyiceberg waits indefinitely. A commit that timed out is looked up like any other commit with a lost reply.
"""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog.rest import RestCatalog
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter

ANSWER_SECONDS = 60.0
"""Timeout of a response, also between two parts of it."""


class PatientRestCatalog(RestCatalog):  # type: ignore[misc]  # mypy does not look into pyiceberg
    """pyiceberg's catalog; a request without a response fails with ReadTimeout or ConnectTimeout."""

    def _create_session(self) -> Session:
        session: Session = super()._create_session()
        for scheme in ("http://", "https://"):
            session.mount(scheme, _Adapter())
        return session

    def _warn_oauth_tokens_deprecation(self) -> None:
        """Does nothing: pyiceberg's warning shows the catalog's address, which may contain a password."""


class _Adapter(HTTPAdapter):
    def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
        return super().send(request, *args, **{**options, "timeout": ANSWER_SECONDS})
