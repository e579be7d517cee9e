"""Loading: what is text, what is laid over, what is resolved, and where each value came from."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_lake.config.effective import MASKED, effective
from cdc_lake.config.loader import load_project, validate
from cdc_lake.config.yaml_tree import resolve_plain
from cdc_lake.model.diagnostic import ConfigInvalid

GOOD = """\
version: 1
pipeline: shop
source:
  type: postgres
  host: db1
  database: shop
  user: cdc
  tables: ["public.*"]
"""


def project_file(root: Path, text: str = GOOD, **environments: str) -> Path:
    (root / "pipelines").mkdir(exist_ok=True)
    (root / "conf").mkdir(exist_ok=True)
    for name, body in environments.items():
        (root / "conf" / f"{name}.yaml").write_text(body)
    file = root / "pipelines" / "shop.yaml"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    "text", ["no", "on", "yes", "off", "True", "010", "0x10", "1_000", "2024-01-01", ".inf", "1:30"]
)
def test_what_yaml_guesses_at_stays_text(text):
    assert resolve_plain(text) == text


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("false", False), ("10", 10), ("-1", -1), ("1.5", 1.5), ("~", None), ("", None)]
)
def test_plain_values_are_read(text, value):
    assert resolve_plain(text) == value
    assert type(resolve_plain(text)) is type(value)


def test_a_short_file_has_every_default(tmp_path):
    project = load_project(project_file(tmp_path))
    assert project.name == project.slot == project.publication == "shop"
    assert project.root == tmp_path
    assert project.bronze == tmp_path / "lake" / "bronze" / "shop"


def test_the_working_directory_does_not_matter(tmp_path, monkeypatch):
    file = project_file(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load_project(file).lake == tmp_path / "lake"


def test_an_environment_is_laid_over_by_key_and_keeps_its_place(tmp_path, monkeypatch):
    file = project_file(tmp_path, prod="source: {host: db9, tables: [a.b]}\nlake: {path: /data}\n")
    monkeypatch.chdir(tmp_path)
    project = load_project(file, environment="prod")
    source = project.pipeline.source
    assert (source.host, source.database, source.tables) == ("db9", "shop", ["a.b"])
    assert str(project.origins["source.host"]) == "conf/prod.yaml:1"
    assert str(project.origins["source.database"]) == "pipelines/shop.yaml:6"


def test_null_in_an_environment_is_present_and_wins(tmp_path):
    file = project_file(
        tmp_path, GOOD.replace("user: cdc", "user: cdc\n  publication: a"), dev="source: {publication: null}\n"
    )
    assert load_project(file).publication == "a"
    assert load_project(file, environment="dev").publication == "shop"


def test_a_problem_in_an_environment_is_told_where_it_stands(tmp_path, monkeypatch):
    file = project_file(tmp_path, dev="source:\n  prot: 5\n")
    monkeypatch.chdir(tmp_path)
    (found,) = validate([file], environment="dev")
    assert (found.code, str(found.location)) == ("CFG104", "conf/dev.yaml:2:3  (source.prot)")
    assert found.hint == "did you mean `port`?"


def test_a_reference_replaced_by_an_environment_need_not_exist(tmp_path, monkeypatch):
    monkeypatch.delenv("NOT_SET_ANYWHERE", raising=False)
    file = project_file(tmp_path, GOOD.replace("db1", "${env:NOT_SET_ANYWHERE}"), dev="source: {host: db2}\n")
    assert load_project(file, environment="dev").pipeline.source.host == "db2"


def test_references_become_what_the_field_is(tmp_path, monkeypatch):
    monkeypatch.setenv("A_PORT", "5433")
    monkeypatch.setenv("A_PASSWORD", "0123e4")
    monkeypatch.setenv("A_NUMBER", "12")
    (tmp_path / "user.txt").write_text("öäü\n")
    text = GOOD.replace("user: cdc", "user: ${file:user.txt}\n  port: ${env:A_PORT}\n  password: ${env:A_PASSWORD}")
    text = text.replace("database: shop", "database: ${env:A_NUMBER}").replace(
        "db1", "${env:A_NAME:-db}.${env:A_NUMBER}"
    )
    source = load_project(project_file(tmp_path, text)).pipeline.source
    assert (source.port, source.user, source.database, source.host) == (5433, "öäü", "12", "db.12")
    assert source.password is not None
    assert source.password.get_secret_value() == "0123e4"


def test_an_empty_variable_gives_the_default(tmp_path, monkeypatch):
    monkeypatch.setenv("EMPTY", "")
    assert load_project(project_file(tmp_path, GOOD.replace("db1", "${env:EMPTY:-db7}"))).pipeline.source.host == "db7"


def test_an_escape_ends_with_its_own_characters(tmp_path, monkeypatch):
    monkeypatch.setenv("AN_X", "x")
    text = GOOD.replace("user: cdc", "user: cdc\n  password: 'a$${b$${c ${env:AN_X}$$$${'")
    password = load_project(project_file(tmp_path, text)).pipeline.source.password
    assert password is not None
    assert password.get_secret_value() == "a${b${c x$$${"


def test_a_doubled_dollar_is_a_literal(tmp_path):
    text = GOOD.replace("user: cdc", "user: cdc\n  password: 'a$${env:X}b'")
    password = load_project(project_file(tmp_path, text)).pipeline.source.password
    assert password is not None
    assert password.get_secret_value() == "a${env:X}b"


def test_secrets_come_from_the_platform_where_it_has_them(tmp_path):
    file = project_file(tmp_path, GOOD.replace("user: cdc", "user: cdc\n  password: ${secret:shop/db}"))
    password = load_project(file, secrets=lambda scope, key: f"{scope}-{key}").pipeline.source.password
    assert password is not None
    assert password.get_secret_value() == "shop-db"
    with pytest.raises(ConfigInvalid) as caught:
        load_project(file)
    assert [d.code for d in caught.value.diagnostics] == ["CFG122"]
    assert caught.value.exit_status == 3


def test_effective_settings_say_where_they_come_from_and_hide_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("A_PASSWORD", "hunter2")
    monkeypatch.chdir(tmp_path)
    text = GOOD.replace("user: cdc", "user: cdc\n  password: ${env:A_PASSWORD}")
    settings = {
        s.path: s
        for s in effective(load_project(project_file(tmp_path, text, dev="lake: {path: l2}"), environment="dev"))
    }
    assert settings["source.password"].text == MASKED
    assert settings["source.password"].source == "pipelines/shop.yaml:8 through env:A_PASSWORD"
    assert settings["lake.path"].source == "conf/dev.yaml:1"
    assert (settings["bronze.batch.max_bytes"].text, settings["bronze.batch.max_bytes"].source) == ("32 MiB", "default")
    assert settings["source.tables[0]"].text == "public.*"
    assert "hunter2" not in repr(settings)


def test_a_password_in_the_file_is_only_warned_about(tmp_path):
    file = project_file(tmp_path, GOOD.replace("user: cdc", "user: cdc\n  password: hunter2"))
    assert [(d.code, d.severity.value) for d in validate([file])] == [("CFG125", "warning")]
    assert "hunter2" not in repr(load_project(file))
