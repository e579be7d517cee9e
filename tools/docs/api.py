"""The reference page of the Python interface, from the docstrings of `Pipeline`."""

from __future__ import annotations

import inspect
import re
from typing import Final

from cdc_lake.api import Pipeline
from tools.docs import GENERATED

_SECTION: Final = re.compile(r"^(Args|Returns|Raises):$", re.MULTILINE)
_ENTRY: Final = re.compile(r"^    (\w+): (.*(?:\n        .*)*)", re.MULTILINE)

_HEAD = """# Python interface

```python
from cdc_lake import Pipeline

shop = Pipeline.load("pipelines/shop.yaml")
```

Methods return values or raise; none prints, exits or installs a signal handler. What a method needs beyond the base
installation (Spark, a database driver, Great Expectations) is imported when it is called. Errors are subclasses of
`cdc_lake.errors.CdcLakeError`: each has a `code`, a `message`, a `where` and a `remedy`, and a [page](errors.md).

`cdc_lake.validate(files)` reports the problems of pipeline files without loading them.
"""


def api_page() -> str:
    """The page."""
    methods = [
        (name, getattr(Pipeline, name))
        for name, member in vars(Pipeline).items()
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, classmethod))
    ]
    parts = [GENERATED, _HEAD, *(_method(name, function) for name, function in methods)]
    return "\n".join(parts)


def _method(name: str, function: object) -> str:
    signature = inspect.signature(function)  # type: ignore[arg-type]
    given = [parameter for parameter in signature.parameters.values() if parameter.name != "self"]
    head, *sections = _SECTION.split(inspect.getdoc(function) or "")
    text = [
        f"## {name}\n",
        f"```text\n{name}{_as_written(signature.replace(parameters=given))}\n```\n",
        head.strip() + "\n",
    ]
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        if title == "Returns":
            text.append(f"**Returns** {_in_one_line(body)}\n")
            continue
        columns = "| argument | |" if title == "Args" else "| error | raised if |"
        rows = (f"| `{word}` | {_in_one_line(meaning)} |\n" for word, meaning in _ENTRY.findall(body))
        text.append(f"{columns}\n|---|---|\n{''.join(rows)}")
    return "\n".join(text)


def _as_written(signature: inspect.Signature) -> str:
    """Annotations without quotes, defaults that are functions by their names."""
    return re.sub(r"<function (\w+) at 0x[0-9a-f]+>", r"\1", str(signature)).replace("'", "")


def _in_one_line(text: str) -> str:
    return " ".join(text.split())
