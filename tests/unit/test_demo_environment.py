"""The environment of the repository fits the demo's pipeline."""

from __future__ import annotations

from pathlib import Path

from cdc_lake.config.loader import load_project

ROOT = Path(__file__).parents[2]


def test_dev_is_laid_over_the_shop(tmp_path: Path) -> None:
    for name in ("pipelines/shop.yaml", "conf/dev.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / ".demo").mkdir()
    (tmp_path / ".demo" / "port").write_text("5432")
    (tmp_path / ".demo" / "password").write_text("secret")
    plain = load_project(tmp_path / "pipelines" / "shop.yaml")
    dev = load_project(tmp_path / "pipelines" / "shop.yaml", environment="dev")
    assert (plain.lake.name, plain.pipeline.bronze.durability) == ("lake", "fsync")
    assert (dev.lake.name, dev.pipeline.bronze.durability) == ("lake-dev", "os")
