"""Boosted trees: XGBoost, LightGBM (`[12]\\ttrain-rmse:0.51`), CatBoost (`12:\\tlearn: 0.51\\ttest: 0.62`).

The step is the round, which trains on all data. LightGBM's own program prints a line for each metric: `[LightGBM] [Info] Iteration:12, training l2 : 0.5`. scikit-learn's
histogram trees print `[12/100] 1 tree, 31 leaves, max depth = 9, train loss: 0.5, in 0.012s`.
"""

import re

from mldebug.core.plugins import NoOptions
from mldebug.jobs.logs.losses import training_loss
from mldebug.jobs.logs.records import NUMBER, WHOLE, LogFormat, LogRecord

_ROUND = re.compile(
    rf"(?:^|\] )\[({WHOLE})\][\t ]{{1,4}}[A-Za-z][\w' ]{{0,60}}[-'][^:\t]{{1,60}}: ?{NUMBER}"
    rf"|^({WHOLE}):\tlearn: ?{NUMBER}\t.{{0,200}}remaining: "
    rf"|^\[LightGBM\] \[Info\] Iteration:({WHOLE}), "
    rf"|^\[({WHOLE})/\d{{1,15}}\] \d{{1,9}} trees?, \d{{1,9}} leaves"
)


class BoostingFormat:
    """Reads the line that boosted trees print for each round; the step is the round."""

    generic = False
    signs = ("]\t", "[lightgbm]", ":\tlearn: ", "train loss")

    def parse(self, line: str) -> LogRecord | None:
        """The step, loss and other figures that this line of a log tells, or None where it is not a line of this format."""
        found = _ROUND.search(line[:400]) if ":" in line else None
        if found is None:
            return None
        return LogRecord(
            step=int(next(one for one in found.groups() if one)),
            loss=training_loss(line.lower()),
            format="boosting",
        )


def create(options: NoOptions) -> LogFormat:
    """Build the log format `boosting`: boosted trees: XGBoost, LightGBM (`[12]\\ttrain-rmse:0.51`), CatBoost (`12:\\tlearn: 0.51\\ttest: 0.62`)."""
    return BoostingFormat()
