"""`python -m tools.docs` writes all generated reference pages."""

from __future__ import annotations

from tools.docs import REFERENCE
from tools.docs.pages import PAGES

for name, page in PAGES.items():
    (REFERENCE / name).write_text(page(), encoding="utf-8")
