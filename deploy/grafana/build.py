"""Write the dashboards: python deploy/grafana/build.py [FOLDER], by default the folder `dashboards` beside this file.

Needs grafana-foundation-sdk (`make` installs it for development). The JSON is what people import; it is never edited.
"""

import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

import cluster
import job
import node
import storage

BOARDS = (cluster, job, node, storage)


def main(folder: Path) -> None:
    """One file for each dashboard, named as its module; panels are numbered in their order."""
    for module in BOARDS:
        made = module.build().build()
        for number, panel in enumerate(made.panels or (), 1):
            panel.id_val = number
        text = JSONEncoder(sort_keys=True, indent=2).encode(made) + "\n"
        (folder / f"{module.__name__}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(*sys.argv[1:2]) if sys.argv[1:] else Path(__file__).parent / "dashboards")
