"""The pages about storage, GPUs and probes of a real agent: a mount that hangs, recorded H200s, a history that was kept."""

import os
import time
from pathlib import Path

import pytest
from playwright.sync_api import expect

from fakenvml.library import FakeNvml
from mldebug.probes.history import ProbeRun
from mldebug_agents.probes.history.store import add_runs
from processes.harness import wait_for
from processes.incidents.watching import settings, watching
from shared.system.hung import hung_mount
from shared.web.browser import CHROMIUM, chromium, relayed, tab
from shared.web.pagedata import SERIES

pytestmark = [
    pytest.mark.scenario,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not CHROMIUM and not os.environ.get("CI"), reason="chromium is not installed"),
]  # fmt: skip


def test_a_person_sees_what_hangs_who_computes_and_what_got_slower(tmp_path: Path) -> None:
    (tmp_path / "nvml").mkdir()
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_bytes(b"x" * (1 << 20))
    fake = FakeNvml(tmp_path / "nvml", "training")
    more = {"LD_LIBRARY_PATH": str(Path(fake.library).parent), **fake.environment}
    with hung_mount(tmp_path) as mount:
        config = settings(tmp_path) + (
            f"trees: {{paths: [{tmp_path / 'tree'}]}}\n"
            f"storage: {{interval: 500ms, paths: [{mount.target}]}}\n"
        )
        with (
            watching(tmp_path, config, more=more) as agent,
            relayed(agent.state) as (base, links),
            chromium() as browser,
            tab(browser, base) as desk,
        ):
            wait_for("a full read", lambda: (snap := agent.snapshot()) and snap.gpus, 60)
            page = desk.page
            desk.open(links[-1])
            desk.open("/storage")
            row = page.locator(".item", has_text=str(mount.target))
            expect(row).to_contain_text("used", timeout=30_000)
            expect(page.locator(".item", has_text=str(tmp_path / "tree"))).to_contain_text("MiB")
            mount.hang()
            try:
                expect(page.locator(".alarms li").first).to_contain_text("has not answered for", timeout=60_000)  # fmt: skip
                expect(page.locator("#group-1 .item").first).to_contain_text(str(mount.target))
            finally:
                mount.recover()
            expect(page.locator(".alarms li", has_text=str(mount.target))).to_have_count(0, timeout=60_000)  # fmt: skip
            desk.open("/gpus")
            expect(page.locator(".board")).to_have_count(2)
            expect(page.locator(".board").first).to_contain_text("533/700 W")
            desk.open("/probes")
            expect(page.locator(".empty")).to_contain_text("No probe has been kept")
            speeds = [4e11] * 12 + [3e11] * 3
            now = time.time() - 60
            add_runs(agent.state, [(SERIES, ProbeRun(at=now + at, seconds=1e-3, busbw=one)) for at, one in enumerate(speeds)])  # fmt: skip
            expect(page.locator(".probe.bad")).to_contain_text("shifted -25%", timeout=60_000)
