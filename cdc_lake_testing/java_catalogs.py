"""Catalogs for Iceberg that run as Java processes of their own on loopback: Iceberg's REST server, Nessie, a Hive
metastore.

The sources of two are in `java`; Java compiles them when it starts them, which needs a JDK. The JAR files of the REST
server and Nessie come from Maven Central, by `mvn`; the metastore is part of pyspark.
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
_NESSIE_VERSION: Final = "0.99.0"
_PATIENCE: Final = 120.0  # seconds to compile, to start and to make tables


class _JavaServer:
    """A process that prints its port, as `started` finds it."""

    def __init__(self, command: Sequence[str], folder: Path, started: str = r"(?m)^port (\d+)$") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "server.log"
        self._folder = folder
        self._command = command
        self._started = started
        self.port = 0

    def __enter__(self) -> Self:
        environment = {key: value for key, value in os.environ.items() if key != "JDK_JAVA_OPTIONS"}
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                self._command, cwd=self._folder, stdout=output, stderr=subprocess.STDOUT, env=environment
            )
        until = time.monotonic() + _PATIENCE
        while (line := re.search(self._started, text := self._log.read_text(errors="replace"))) is None:
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
        super().__init__(_of_source("RestCatalog.java", [_maven_classes(folder), *hadoop], *arguments), folder)

    @property
    def uri(self) -> str:
        """What `lake.iceberg.uri` says."""
        return f"http://127.0.0.1:{self.port}"


class NessieCatalog(_JavaServer):
    """Nessie, which needs Java 21 or newer in `/usr/lib/jvm`. `keys`: access key and secret of the store."""

    def __init__(self, folder: Path, warehouse: str, endpoint: str, keys: tuple[str, str]) -> None:
        store = "nessie.catalog.service.s3.default-options"
        settings = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": "0",
            "quarkus.management.host": "127.0.0.1",
            "quarkus.management.port": "0",
            "nessie.version.store.type": "IN_MEMORY",
            "nessie.catalog.default-warehouse": "lake",
            "nessie.catalog.warehouses.lake.location": warehouse,
            f"{store}.endpoint": endpoint,
            f"{store}.region": "us-east-1",
            f"{store}.path-style-access": "true",
            f"{store}.request-signing-enabled": "false",
            f"{store}.access-key": "urn:nessie-secret:quarkus:keys",
            "keys.name": keys[0],
            "keys.secret": keys[1],
        }
        options = [f"-D{key}={value}" for key, value in settings.items()]
        command = [str(_newer_java()), "-Xmx768m", *options, "-jar", str(_nessie())]
        super().__init__(command, folder, r"Listening on: http://127\.0\.0\.1:(\d+)")

    @property
    def uri(self) -> str:
        """What `lake.iceberg.uri` says."""
        return f"http://127.0.0.1:{self.port}/iceberg"


class HiveMetastore(_JavaServer):
    """A Hive metastore over Derby; it takes half a minute to start."""

    def __init__(self, folder: Path) -> None:
        super().__init__(_of_source("Metastore.java", [str(_JARS / "*")], str(folder)), folder)

    @property
    def uri(self) -> str:
        """What `lake.iceberg.uri` says."""
        return f"thrift://127.0.0.1:{self.port}"


def _of_source(source: str, classes: Sequence[str], *arguments: str) -> list[str]:
    return ["java", "-Xmx512m", "-cp", ":".join(classes), str(_SOURCES / source), *arguments]


def _newer_java() -> Path:
    for release in Path("/usr/lib/jvm").glob("*/release"):
        version = re.search(r'(?m)^JAVA_VERSION="(\d+)', release.read_text())
        if version is not None and int(version[1]) >= 21:
            return release.with_name("bin") / "java"
    msg = "Nessie needs Java 21 or newer in /usr/lib/jvm"
    raise RuntimeError(msg)


def _nessie() -> Path:
    """The server in the local Maven repository, fetched into it if it is not there."""
    coordinates = ("org.projectnessie.nessie", "nessie-quarkus", _NESSIE_VERSION)
    group, name, version = coordinates
    folder = Path.home().joinpath(".m2", "repository", *group.split("."), name, version)
    file = folder / f"{name}-{version}-runner.jar"
    if not file.exists():
        artifact = f"-Dartifact={':'.join(coordinates)}:jar:runner"
        subprocess.run(["mvn", "-q", "-B", "dependency:get", artifact, "-Dtransitive=false"], check=True, timeout=600)
    return file


def _maven_classes(folder: Path) -> str:
    """The class path of `java/pom.xml`."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "classes.txt"
    command = ["mvn", "-q", "-B", "-f", str(_SOURCES / "pom.xml"), "dependency:build-classpath"]
    subprocess.run([*command, f"-Dmdep.outputFile={file}"], check=True, timeout=600)
    return file.read_text(encoding="utf-8").strip()
