"""The report of a run in a real browser, at the widths of a laptop's window and of half of it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from robot_rl.evaluation.report import write_report
from robot_rl.run import RunDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "evaluation"))
from test_report import SUMMARY, evaluation, ledger, lines, write_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium"),
]
# What reaches beyond the box that it may be scrolled in.
MEASURE = """<script>
const tables = [...document.querySelectorAll('.scroll'), document.documentElement];
document.body.dataset.beyond = tables.map(e => e.scrollWidth - e.clientWidth).join(' ');
</script>"""


@pytest.mark.parametrize("width", [1200, 800])
def test_no_column_is_cut_off(tmp_path, width):
    run = RunDirectory(write_run(tmp_path))
    curve = [evaluation(500 * n, 90, deployed=n < 1) for n in range(17)]
    finals = [evaluation(0, 80, 200, seed_set="final"), evaluation(8000, 197, 200, "final")]
    (run.path / "evaluations.jsonl").write_text(lines([*curve, *finals]))
    (run.path / "policies.jsonl").write_text(ledger(cloned="not deployed", learned="deployed"))
    (run.path / "summary.json").write_text(json.dumps({**SUMMARY, "environment_steps": 8000}))
    page = tmp_path / "measured.html"
    page.write_text(write_report(run).read_text().replace("</body>", f"{MEASURE}</body>"))
    command = [CHROMIUM, "--headless", "--no-sandbox", f"--window-size={width},1500", "--dump-dom"]
    shown = subprocess.run([*command, f"file://{page}"], capture_output=True, text=True, check=True)
    (beyond,) = re.findall(r'data-beyond="([\d -]+)"', shown.stdout)
    assert [int(each) for each in beyond.split()] == [0, 0]
