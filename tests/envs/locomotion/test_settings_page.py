"""The page of the quadruped lists every setting with its default."""

from pathlib import Path

from proxima.config.nested import settings_table
from proxima.envs.locomotion.depth import CameraSettings
from proxima.envs.locomotion.settings import QuadrupedSettings

PAGE = Path(__file__).parents[3] / "docs" / "locomotion.md"


def test_the_page_has_every_setting() -> None:
    rows = [row for row in settings_table(QuadrupedSettings) if not row.startswith("| `camera`")]
    table = "\n".join([*rows, *settings_table(CameraSettings, "camera.")])
    assert table in PAGE.read_text(), f"the table of docs/locomotion.md should be:\n{table}"
    assert all(row.count("|") == 4 for row in table.splitlines())
