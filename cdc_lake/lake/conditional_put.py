"""A put where there is nothing yet, asked of a store directly: does it honour the condition that fences writers?

The libraries that write tables put log entries under the same condition, but none puts an object of ours, and a store
that does not know the condition takes such a put without a word. The request is signed by AWS Signature Version 4
(Amazon S3 API reference, "Authenticating Requests").
"""

from __future__ import annotations

import hashlib
import hmac
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

from cdc_lake.config.storage import Storage

_SECONDS = 30.0


def put_if_absent(storage: Storage, path: str, body: bytes) -> bool:
    """Put an object at `bucket/key`; False where the store says that there is one. Raises OSError."""
    endpoint = storage.endpoint or f"https://s3.{storage.region}.amazonaws.com"
    parts = urlsplit(endpoint)
    connect = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = connect(parts.netloc, timeout=_SECONDS)
    try:
        connection.request("PUT", f"/{path}", body, signed(storage, parts.netloc, path, body, datetime.now(UTC)))
        reply = connection.getresponse()
        reply.read()
    except HTTPException as cause:
        raise OSError("the store's reply could not be read") from cause
    finally:
        connection.close()
    if reply.status == 412:  # Precondition Failed
        return False
    if reply.status != 200:
        raise OSError(f"the store answered {reply.status} {reply.reason}")
    return True


def signed(storage: Storage, host: str, path: str, body: bytes, at: datetime) -> dict[str, str]:
    """The headers of a conditional put; `path` has only characters that need no escape (`ObjectAddress`)."""
    day, moment = at.strftime("%Y%m%d"), at.strftime("%Y%m%dT%H%M%SZ")
    headers = {
        "host": host,
        "if-none-match": "*",
        "x-amz-content-sha256": hashlib.sha256(body).hexdigest(),
        "x-amz-date": moment,
    }
    if storage.session_token is not None:
        headers["x-amz-security-token"] = storage.session_token.get_secret_value()
    names = ";".join(sorted(headers))
    listed = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    request = f"PUT\n/{path}\n\n{listed}\n{names}\n{headers['x-amz-content-sha256']}"
    scope = f"{day}/{storage.region}/s3/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    text = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{digest}"
    key = b"AWS4" + storage.secret_access_key.get_secret_value().encode()
    for part in (day, storage.region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    credential = f"{storage.access_key_id.get_secret_value()}/{scope}"
    authorization = f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}"
    return {**headers, "authorization": authorization}
