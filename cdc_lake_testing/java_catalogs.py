"""Catalogs for Iceberg that run as Java processes of their own on loopback: Iceberg's REST server, a Hive metastore.

Their sources are in `java`; Java compiles them when it starts them, which needs a JDK. The JAR files of the REST server
come from Maven Central, by `mvn`; the metastore is part of pyspark.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

import pyspark

_SOURCES: Final = Path(__file__).parent / "java"
_JARS: Final = Path(pyspark.__path__[0]) / "jars"
_PATIENCE: Final = 120.0  # seconds to compile, to start and to make tables


class _JavaServer:
    """A process that prints its port."""

    def __init__(self, source: str, classes: Sequence[str], arguments: Sequence[str], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "server.log"
        self._folder = folder
        self._command = ["java", "-Xmx512m", "-cp", ":".join(classes), str(_SOURCES / source), *arguments]
        self.port = 0

    def __enter__(self) -> Self:
        environment = {key: value for key, value in os.environ.items() if key != "JDK_JAVA_OPTIONS"}
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                self._command, cwd=self._folder, stdout=output, stderr=subprocess.STDOUT, env=environment
            )
        until = time.monotonic() + _PATIENCE
        while (line := re.search(r"(?m)^port (\d+)$", text := self._log.read_text(errors="replace"))) is None:
            if self._process.poll() is not None or time.monotonic() > until:
                self.__exit__()
                msg = f"it did not start: {text[-2000:]}"
                raise RuntimeError(msg)
            time.sleep(0.1)
        self.port = int(line[1])
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


class ReferenceRestCatalog(_JavaServer):
    """Iceberg's REST catalog over JDBC tables in a SQLite file. `properties`: further ones, such as those of S3."""

    def __init__(self, folder: Path, warehouse: str, properties: Mapping[str, str]) -> None:
        hadoop = map(str, _JARS.glob("hadoop-client-*.jar"))
        settings = {
            "type": "jdbc",
            "uri": f"jdbc:sqlite:{folder / 'catalog.db'}",
            "jdbc.schema-version": "V1",
            "warehouse": warehouse,
            **properties,
        }
        arguments = [f"{key}={value}" for key, value in settings.items()]
        super().__init__("RestCatalog.java", [_maven_classes(folder), *hadoop], arguments, folder)

    @property
    def uri(self) -> str:
        """What `lake.iceberg.uri` says."""
        return f"http://127.0.0.1:{self.port}"


class HiveMetastore(_JavaServer):
    """A Hive metastore over Derby; it takes half a minute to start."""

    def __init__(self, folder: Path) -> None:
        super().__init__("Metastore.java", [str(_JARS / "*")], [str(folder)], folder)

    @property
    def uri(self) -> str:
        """What `lake.iceberg.uri` says."""
        return f"thrift://127.0.0.1:{self.port}"


def _maven_classes(folder: Path) -> str:
    """The class path of `java/pom.xml`."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "classes.txt"
    command = ["mvn", "-q", "-B", "-f", str(_SOURCES / "pom.xml"), "dependency:build-classpath"]
    subprocess.run([*command, f"-Dmdep.outputFile={file}"], check=True, timeout=600)
    return file.read_text(encoding="utf-8").strip()
