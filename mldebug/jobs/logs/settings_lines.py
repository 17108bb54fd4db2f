"""Which lines of a log are a program's settings, not its progress: `Namespace(lr=0.1, loss=1.0)`, `args: {'step': 30, 'seed': 1}`.

They have figures by the names that progress has. Their names tell them: what stands before the list, or keys that only settings have.
"""

import re

_OWNER = r"(?:namespace|[a-z_.]{0,40}(?:args|arguments|config(?:uration)?|cfg|options|params|settings)|hyper-?parameters)"
_LIST = re.compile(rf"(?<![a-z_.]){_OWNER}(?:\(|[ :=]{{0,4}}\{{)|(?:^|[\]:>|-] ){_OWNER}[:=] ")
_ENTRY = re.compile(  # of a list over several lines: `    "train steps": 25,`, of which a record would have one step
    r"\s{1,40}['\"][a-z_ -]{0,40}(?:steps|iterations|updates|batches)['\"]: {0,4}\d{1,15},?\s{0,8}$"
)
_KEY = re.compile(
    r"(?<![a-z])(seed|(?:num_|max_|n_)?epochs|(?:num_)?workers|weight_decay|momentum|dropout|optimi[sz]er|scheduler|gamma|warmup\w{0,8}"
    r"|(?:output|data|log|save)_(?:dir|path)|resume|hidden\w{0,8}|(?:num_|n_)?layers|(?:train_)?batch_size)['\"]?[:=]"
)
_SIGNS = ("args", "arguments", "config", "cfg", "options", "params", "settings", "parameters", "namespace")  # fmt: skip
_RARE_KEYS = ("seed", "epochs", "workers", "optimi", "_dir", "_path", "dropout", "layers", "hidden")
ENOUGH = 3  # such keys in one line: a line of training may have one or two beside its figures


def lists_settings(line: str) -> bool:
    """Whether this line, in lower case, lists settings."""
    if (_has(line, _SIGNS) and _LIST.search(line)) or _ENTRY.match(line):
        return True
    return _has(line, _RARE_KEYS) and len(set(_KEY.findall(line))) >= ENOUGH


def _has(line: str, parts: tuple[str, ...]) -> bool:
    for part in parts:  # noqa: SIM110  # half the time of any()
        if part in line:
            return True
    return False
