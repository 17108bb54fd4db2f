"""What names of files and folders say: which is a checkpoint, which ones belong to one series, and of which step each is.

| a file that a job writes | the checkpoint | its series |
|---|---|---|
| `/out/model-100.pt` | the file | `model-#.pt` in `/out` |
| `/out/step_100/model.pt`, `/out/iter_0000100/mp_rank_00/model_optim_rng.pt` | the folder that has the step | `step_#`, `iter_#` |
| `/out/last/__0_0.distcp` | the folder of the shards | `last` |
| `/out/step=100.ckpt/checkpoint/mp_rank_00_model_states.pt` | the folder `.ckpt` | `step=#.ckpt` |
| `/out/1000/_CHECKPOINT_METADATA`, `/out/checkpoints/1000/items/manifest.ocdbt` | the folder of the step, as Orbax makes it | `#` |
| `/out/step-1000/model/layers/weight/.zarray`, `/out/step-1000/manifest.ocdbt` | the folder of the step, as Levanter makes it | `step-#` |
| `/out/data.pt` | none: neither step nor a word of checkpoints | |

A wrong checkpoint is worse than none: other programs write `.pt` and `.bin` files as well.
"""

import re
from posixpath import basename, dirname
from typing import NamedTuple

_SHARD = re.compile(r"__\d{1,7}_\d{1,7}\.distcp")
_INDEX = (".metadata", ".metadata.tmp")
OF_ORBAX = ("_CHECKPOINT_METADATA", "orbax.checkpoint")
"""Names of files that Orbax writes right into the folder of a checkpoint, whatever that is called."""
MANIFEST = "manifest.ocdbt"  # in each item of such a checkpoint
ARRAY = ".zarray"  # in each array's folder of zarr: those of Levanter, and of data sets
OF_LEVANTER = re.compile(r"step-(?P<step>\d{1,12})|epoch-\d{1,12}")
_SUFFIX = re.compile(
    r".{1,200}\.(?:pt|pth|ckpt|safetensors)(?:\.tar)?|(?:pytorch_model|adapter_model|optimizer|scheduler|model)[\w.-]{0,100}\.bin"
)
_WORD = r"checkpoints?|ckpts?|chkpt|steps?|global_?steps?|iter(?:ation)?s?|epochs?|snapshot|saves?|it|ep\d{1,9}-ba"
_STEP = re.compile(rf"(?:^|(?<!custom)[^a-z])(?:{_WORD})[-_=. ]{{0,2}}(\d{{1,12}})", re.IGNORECASE)
_CHECKPOINT_WORD = re.compile(
    rf"{_WORD}|model|weights?|state|last|latest|best|final|optim\w{{0,8}}|mp_rank|zero_pp|rng|adapter|consolidated",
    re.IGNORECASE,
)
_PER_RANK = re.compile(
    r"(?:mp_)?rank[-_]?\d.{0,20}|(?:pytorch_)?model.{0,30}|optimizer.{0,30}|shards?|dist_ckpt|global_step\d{1,12}|latest|state"
    r"|weights|context|pretrained_model|training_state|(?:unet|transformer|vae|controlnet|text_encoder)[\w-]{0,12}|adapter|lora.{0,20}|ema"
    r"|(?:actor|critic|policy|value|reward|reference)(?:_train|_infer)?|modeling|optim|(?:lr_)?scheduler|train(?:er)?|extra_state|orchestrator"
    r"|(?:train_)?(?:data)?loader|data_reader|rng|random|params|[a-z]?[dptec]p[-_]\d{1,6}",
    re.IGNORECASE,
)
_NUMBERED = re.compile(
    r"\d{1,12}"
)  # nanotron, LeRobot: a folder `checkpoints` of folders that are numbers
_OF_NUMBERED = re.compile(r"checkpoints?|ckpts?", re.IGNORECASE)
_OF_PARALLEL = re.compile(
    r"(?:model_weight|optimizer|lr_scheduler)_pp-(?:rank-)?\d{1,7}-of-\d{1,7}_.{1,200}"
    r"|(?:model|optimizer)_[tw]p\d{1,7}_pp\d{1,7}(?:_.{1,100})?\.pt"  # InternLM, right in the numbered folder
)
_IN_NUMBERED = (
    "model",
    "optimizer",
    "lr_scheduler",
)  # nanotron's folders, whatever the one above is called
_NUMBER = re.compile(r"\d{1,20}(?:\.\d{1,20})?")
_DATED = re.compile(r"CKPT\+.{1,100}")  # SpeechBrain's folders: the time of day in place of a step
# Where a data set or the random numbers go on: of no use without a model
_NO_MODEL = re.compile(r".*(?:dataset|data(?:loader)?|rng|random)[-_]?(?:state|dp_rank).*", re.IGNORECASE)  # fmt: skip
_BEFORE, _AFTER = re.compile(r"^\.?(?:tmp|temp)[-_.]|^\.(?=[^.])", re.IGNORECASE), re.compile(r"(?:\.(?:tmp|temp|partial|incomplete|part|writing|orbax-checkpoint-tmp(?:-\d{1,20})?)|[-_]tmp|~)$", re.IGNORECASE)  # fmt: skip
_COUNTED = re.compile(r"(?:^|[^a-z])(?:(?:global_?)?(?:steps?|iter(?:ation)?s?)|ep\d{1,9}-ba)[-_=. ]{0,2}(\d{1,12})", re.IGNORECASE)  # fmt: skip
# Names of frameworks that count steps and do not say so: the Trainer, diffusers, ms-swift; fairseq's have epoch and updates
_UNSAID = re.compile(
    r"(?:tmp-)?checkpoint-(\d{1,12})|checkpoint_\d{1,9}_(\d{1,12})(?:-shard.{1,9}|-rank.{1,9})?(?:\.pt)?"
)
MAX_UP = 5  # folders above a file in which its step is looked for
MAX_UP_NUMBERED = 8
MAX_UP_RUN = 3  # `checkpoints`, and the names of a configuration and a run below it
MAX_UP_ARRAY = 24  # an array of Levanter lies as deep as its place in the model


class CheckpointPath(NamedTuple):
    """Where a checkpoint is: a folder, and the name of a file or folder in it."""

    folder: str
    name: str


def is_part(name: str) -> bool:
    """Whether a file of that name belongs to a checkpoint, judged by the name alone."""
    if name == ARRAY:
        return True
    name = final_name(name)
    if name == MANIFEST or name in OF_ORBAX:
        return True
    return bool(_SHARD.fullmatch(name) or f".{name}" in _INDEX or name in _INDEX or _SUFFIX.fullmatch(name))  # fmt: skip


def checkpoint_of(path: str) -> CheckpointPath | None:
    """The checkpoint that the file at `path` is a part of; None where its name does not show one."""
    name, folder = basename(path), dirname(path)
    if not is_part(name) or not folder or folder == "/":
        return None
    if name in OF_ORBAX:
        return CheckpointPath(dirname(folder), basename(folder))
    if name == ARRAY:
        return _of_array(folder)
    own = _STEP.search(name) is not None
    above = folder
    for up in range(MAX_UP):
        if _STEP.search(basename(above)) and not (own and up):
            inner = _outermost(_around(above))
            return CheckpointPath(dirname(inner), basename(inner))
        if _DATED.fullmatch(basename(above)):
            return CheckpointPath(dirname(above), basename(above))
        if basename(above) == "checkpoint" and dirname(above).endswith(".ckpt"):
            outer = dirname(above)  # Lightning's, with what DeepSpeed writes inside
            return CheckpointPath(dirname(outer), basename(outer))
        if above == folder and (numbered := _numbered_above(folder, name)):
            return numbered
        if not _PER_RANK.fullmatch(basename(above)):
            break
        above = dirname(above)
    if _SHARD.fullmatch(final_name(name)) or name in _INDEX:
        return CheckpointPath(dirname(folder), basename(folder))
    if _NO_MODEL.fullmatch(name):
        return None
    return CheckpointPath(folder, name) if own or _CHECKPOINT_WORD.search(name) else None


def _of_array(folder: str) -> CheckpointPath | None:
    """The folder of a step above an array's, as Levanter names it; None for an array of anything else."""
    for _ in range(MAX_UP_ARRAY):
        above = dirname(folder)
        if above == folder:
            return None
        if OF_LEVANTER.fullmatch(final_name(basename(folder))):
            return CheckpointPath(above, basename(folder))
        folder = above
    return None


def _numbered_above(folder: str, name: str) -> CheckpointPath | None:
    """The folder `checkpoints/1000` above a file, however deep the file lies in it; or `1000` in any folder for the names that nanotron
    gives its files: `1000/model/model/…/model_weight_pp-rank-0-of-2_tp-rank-0-of-1.safetensors`.
    """
    of_parallel, below = _OF_PARALLEL.fullmatch(name) is not None, ""
    for _ in range(MAX_UP_NUMBERED):
        above = dirname(folder)
        if above == folder:
            return None
        holds = _is_for_numbered(above) or (of_parallel and below in ("", *_IN_NUMBERED))
        dated = _NUMBERED.fullmatch(below)  # `2026/11/28`
        if holds and not dated and _NUMBERED.fullmatch(final_name(basename(folder))):
            return CheckpointPath(above, basename(folder))
        folder, below = above, basename(folder)
    return None


def _is_for_numbered(folder: str) -> bool:
    """Whether numbers in this folder are steps: it is called `checkpoints`, or lies below such a one by run (`checkpoints/pi0/exp`).

    Folders of dates (`checkpoints/2026/11/28`) are none.
    """
    if _NUMBERED.fullmatch(basename(folder)):
        return False
    for _ in range(MAX_UP_RUN):
        if _OF_NUMBERED.fullmatch(basename(folder)):
            return True
        folder = dirname(folder)
    return False


def _around(folder: str) -> str:
    """The step's folder around the one that NeMo RL has Megatron write, of iteration 0 each time: `step_10` for
    `step_10/policy/weights/iter_0000000`.
    """
    outer = dirname(dirname(dirname(folder)))
    return outer if basename(folder) == "iter_0000000" and _COUNTED.search(basename(outer)) else folder  # fmt: skip


def _outermost(folder: str) -> str:
    """The outer one of two nested folders of the same step: `checkpoint-500` for `checkpoint-500/global_step500`."""
    above = dirname(folder)
    outer, inner = _STEP.search(basename(above)), _STEP.search(basename(folder))
    return above if outer and inner and int(outer[1]) == int(inner[1]) else folder


def final_name(name: str) -> str:
    """The name without marks for unfinished files: `checkpoint-5` for `tmp-checkpoint-5` and `checkpoint-5.tmp`."""
    if name in _INDEX:
        return name
    return _AFTER.sub("", _BEFORE.sub("", name)) or name


def without_steps(path: str) -> str:
    """A path inside a checkpoint with # for the step, so that it is the same in all checkpoints of the series: `step#/rank0.pt` for `global_step500/rank0.pt`."""
    return _STEP.sub("step#", path)


def is_temporary(name: str) -> bool:
    """Whether the name itself says that the file is unfinished: `.tmp`, `tmp-...`."""
    return final_name(name) != name


def series_of(name: str) -> str:
    """The series of a checkpoint: its name with # for each number, `model-#.pt`."""
    return _NUMBER.sub("#", final_name(name))[:200]


def has_come_to(named: str, own: str) -> bool | None:
    """Whether a tracker that names one checkpoint (`latest`) has come to this one or is beyond it; None where that does not show.

    Steps are compared, and in names of one series that count something else (`epoch_3`) that.
    """
    if named == own:
        return True
    there, here = (int(named) if named.isdecimal() and len(named) < 13 else step_of(named)), step_of(own)  # fmt: skip
    if there is not None and here is not None:
        return there >= here
    if series_of(named) != series_of(own):
        return None
    numbers = [[float(one) for one in _NUMBER.findall(name)] for name in (named, own)]
    return numbers[0] >= numbers[1]


def step_of(name: str) -> int | None:
    """The step or iteration in a name; None where it has none.

    The number in `checkpoint-3.pt` may count anything, and an epoch is no step.
    """
    name = final_name(basename(name)[:255])
    if found := _COUNTED.findall(name):
        return int(found[-1])
    if unsaid := _UNSAID.fullmatch(name):
        return int(unsaid[1] or unsaid[2])
    return int(name) if _NUMBERED.fullmatch(name) and name.isascii() else None
