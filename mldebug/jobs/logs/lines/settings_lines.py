"""Which lines of a log are a program's settings, not its progress: `Namespace(lr=0.1, loss=1.0)`, `args: {'step': 30, 'seed': 1}`.

They have figures by the names that progress has. Their names tell them: what stands before the list, or keys that only settings have.
Neither makes settings of a line that counts as they never do (`step 12 loss 2.3 | params: 124M`, `[seed=1 num_layers=8 batch_size=4] step=12`).
"""

import re

_OWNER = r"(?:namespace|[a-z_.]{0,40}(?:args|arguments|config(?:uration)?|cfg|options|params|settings)|hyper-?parameters)"
_LIST = re.compile(
    rf"(?<![a-z_.])(?:{_OWNER}|parameters)(?:\(|[ :=]{{0,4}}\{{)|(?:^|[\]:>|-] )(?:[a-z]{{2,20}} )?{_OWNER}[:=] (?![^|,;=:{{(]{{1,40}}[|,;])"
)
_ENTRY = re.compile(  # of a list over several lines: `    "train steps": 25,`, of which a record would have one step
    r"\s{1,40}['\"](?:[a-z]{1,20}[ _-]){0,3}(?:train(?:ing)?|eval(?:uation)?|valid(?:ation)?|test|save|log(?:ging)?|warm-?up|accumulation|decay|max|num(?:ber of)?|total)[ _-]"
    r"(?:steps|iterations|updates|batches)['\"]: {0,4}\d{1,15},?\s{0,8}$"
)
_SURE = r"seed|(?:num_|max_|n_)?epochs|(?:num_)?workers|optimi[sz]er|scheduler|(?:output|data|log|save)_(?:dir|path)|resume"
_KEY = re.compile(  # a training may also measure or schedule what is not sure
    rf"(?<![a-z])(?:(?P<sure>{_SURE})|(weight_decay|momentum|dropout|gamma|warmup|hidden(?=_(?:size|dim|units|channels|features))|(?:num_|n_)?layers|(?:train_)?batch_size)\w{{0,10}})['\"]?[:=]"
)
_COUNT = re.compile(  # of no setting: `step 12`, `epoch: 3/10`; a dict's "epoch", beside which settings would have epochs
    r"(?<![a-z_])(?:step|iter(?:ation)?|epoch)s?(?: {1,8}\[?\d| ?[:=] {0,8}\[?\d{1,15}/\d)|['\"]epoch['\"]: {0,4}\d"
)
_FIGURE = re.compile(r"(?:step|iter(?:ation)?|loss)['\"]?[ :=]{1,4}\d")
_MEASURED = re.compile(  # a loss with so many digits nobody has set
    r"(?<![a-z_])loss['\"]?[:=] ?['\"]?-?\d{1,9}\.\d{3}|(?<![a-z_])(?:time(?:stamp)?|elapsed\w{0,8}|eta|(?:num_)?tokens|grad_?norm|throughput|acc(?:uracy)?)['\"]?[:=]"
)
_TAG = re.compile(r"\s{0,8}\[[^\]]{1,300}\][: ] {0,4}(?=\S)")
_SIGNS = ("args", "arguments", "config", "cfg", "options", "params", "settings", "parameters", "namespace")  # fmt: skip
_RARE_KEYS = ("seed", "epochs", "workers", "optimi", "_dir", "_path", "scheduler", "resume")
ENOUGH = 3  # such keys in one line: a line of training may have one or two beside its figures


def lists_settings(line: str) -> bool:
    """Whether this line, in lower case, lists settings."""
    if line[:1].isspace() and _ENTRY.match(line):
        return True
    if _has(line, _SIGNS) and (found := _LIST.search(line)):
        return not (_COUNT.search(line) or _FIGURE.search(line, 0, found.start()))
    if not (_has(line, _RARE_KEYS) and _has_keys(line)):
        return False
    return not (_COUNT.search(line) or _MEASURED.search(line))


def _has_keys(line: str) -> bool:
    tag = _TAG.match(line)
    found = list(_KEY.finditer(line, tag.end() if tag else 0))
    names = {one["sure"] or one[2] for one in found}
    return len(names) >= ENOUGH and any(one["sure"] for one in found)


def _has(line: str, parts: tuple[str, ...]) -> bool:
    for part in parts:  # noqa: SIM110  # half the time of any()
        if part in line:
            return True
    return False
