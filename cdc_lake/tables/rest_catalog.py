"""A REST catalog whose server may stop answering: pyiceberg's client, with an end to its patience.

pyiceberg waits for ever. A commit that is given up is looked up like any other whose answer was lost.
"""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog.rest import RestCatalog
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter

ANSWER_SECONDS = 60.0
"""How long an answer may take, also between two pieces of it."""


class PatientRestCatalog(RestCatalog):  # type: ignore[misc]  # mypy does not look into pyiceberg
    """pyiceberg's catalog; a request without an answer fails as ReadTimeout or ConnectTimeout."""

    def _create_session(self) -> Session:
        session: Session = super()._create_session()
        for scheme in ("http://", "https://"):
            session.mount(scheme, _Adapter())
        return session

    def _warn_oauth_tokens_deprecation(self) -> None:
        """Nothing: pyiceberg's own warning shows the catalog's address, with a password that may be in it."""


class _Adapter(HTTPAdapter):
    def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
        return super().send(request, *args, **{**options, "timeout": ANSWER_SECONDS})
