"""Other figures beside a step in a log line, by one name whatever a framework calls them: `{"grad_norm": 1.2, "learning_rate": 1e-4}`.

Values are kept as they come, in the unit of the log (memory in GiB or MB, MFU as a share or in percent); `1.2K` is 1200. What an
evaluation measures (`val/…`, `eval_…`) is left out. Only names of `NAMES` are kept, so a line cannot make many. Pure.
"""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from mldebug.jobs.logs.records import NUMBER, number

MAX_CHARACTERS = 4000  # of a line
MOST = 24  # names of one record or run
MAX_NAME = 40  # characters of one that a user gave

_WRITTEN: Mapping[str, tuple[str, ...]] = {
    "grad_norm": ("grad_norm", "gnorm", "gradient_norm", "total_grad_norm", "global_norm", "global_grad_norm", "grdn", "grad", "norm"),
    "learning_rate": ("lr", "learning_rate", "cur_lr", "lrate", "actor_lr", "pg0_lr", "base_lr"),
    "tokens_per_second": ("tokens_per_sec", "tokens_per_second", "tokens_sec", "tokens_s", "tok_sec", "tok_s", "tps", "wps", "throughput"),
    "tokens_per_second_per_gpu": ("tokens_per_second_per_gpu", "tokens_per_sec_per_gpu", "tokens_s_device", "tokens_per_gpu_per_sec", "tgs", "tgs_tokens_gpu_second"),
    "samples_per_second": (
        "samples_per_second", "samples_per_sec", "samples_sec", "train_samples_per_second", "interval_samples_per_second", "samplespersec",
        "runningavgsamplespersec", "images_sec", "images_per_sec", "ips", "img_sec_core",
    ),
    "tflops": ("tflops", "tflop_s_device", "tflops_device", "model_tflops_per_gpu", "throughput_per_gpu_tflop_s_gpu", "train_throughput_per_npu"),
    "mfu": ("mfu", "mfu_actor", "bf16_mfu"),
    "memory": (
        "memory", "mem", "max_mem", "memory_gib", "max_mem_active_gib", "peak_mem", "gpu_mem", "memallocated", "max_memory_allocated_gb", "mem_usages", "peak_memory_active",
        "max_mem_reserved", "max_memory", "gpumem",
    ),
    "loss_scale": ("loss_scale", "scale"),
    "skipped_iterations": ("number_of_skipped_iterations", "skipped", "skipped_iterations", "inf_nan_skip_batches"),
    "nan_iterations": ("number_of_nan_iterations", "nan_iterations"),
    "reward": ("reward", "mean_reward", "critic_score_mean", "raw_reward"),
    "perplexity": ("ppl", "perplexity"),
    "batch_size": ("global_batch_size", "batch_size", "gbs", "total_batch_size"),
    "sequence_length": ("curriculum_seqlen", "seqlen", "seq_len", "seq_length", "sequence_length", "curriculum_difficulty"),
}  # fmt: skip
NAMES: Mapping[str, str] = MappingProxyType(
    {written: name for name, many in _WRITTEN.items() for written in many}
)
"""The name of a scalar by what stands in a log, in lower case, with `_` for what is no letter or digit."""

_ALONE = (
    "norm",
    "grad",
    "scale",
    "mem",
    "throughput",
    "reward",
    "ips",
    "memory",
    "skipped",
    "batch_size",
)
"""Words that mean something else behind another (`params norm`, `lr scale`, `micro batch size`)."""
_BETWEEN = "[ _/.(-]{1,2}"  # two words of a name


def _any_of(names: Iterable[str]) -> str:
    longest_first = sorted(names, key=len, reverse=True)
    return "|".join(name.replace("_", _BETWEEN) for name in longest_first)


_VALUE = rf"(?P<value>\d{{1,3}}(?:,\d{{3}}){{1,4}}(?:\.\d{{1,6}})?(?!\d)|{NUMBER})(?P<kilo>[kmgbt](?![a-z]))?"
_PAIR = re.compile(
    rf"(?<![a-z0-9])(?P<name>(?:{_any_of(set(NAMES) - set(_ALONE))})|(?<![a-z0-9][ _/.-])(?:{_any_of(_ALONE)}))"
    rf"(?: ?\([a-z]{{1,12}}\)|\))?['\"]?(?: ?[:=]| ) {{0,8}}(?:np\.float\d\d\(|['\"\[]{{0,2}}){_VALUE}"
)
_BEHIND = re.compile(  # `210000 tok/s`, `39.5% bf16 mfu`
    rf"(?<![\w.,]){_VALUE}%? ?(?P<name>tok/s|tokens/s|(?:bf16 )?mfu|tflops|tflop/s|samples/s(?:ec)?|images/s(?:ec)?)(?![a-z])"
)
_LARGE = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}
_NO_WORD = re.compile(r"[^a-z0-9]+")
_OF_EVALUATION = re.compile(
    r"(?<![a-z])(?:val|valid|validation|eval|evaluation|test|dev)[ _/.-]{1,2}$"
)
_UNITS = {"samples_s": "samples_sec", "images_s": "images_sec", "tflop_s": "tflops"}


def scalars_of(line: str) -> dict[str, float]:
    """The known figures in a log line by their common name (`NAMES`), without those of an evaluation; of two with one name the
    first is kept.
    """
    text = line[:MAX_CHARACTERS].lower()
    found: dict[str, float] = {}
    for pair in _PAIR.finditer(text):
        if not _OF_EVALUATION.search(text, max(0, pair.start() - 16), pair.start()):
            _add(found, pair)
    if "/s" in text or "mfu" in text or "flop" in text:
        for pair in _BEHIND.finditer(text):
            _add(found, pair)
    return found


def name_of(chart: str) -> str:
    """The common name of the figure that a chart shows, from the last part of the chart's name (`train/grad_norm`); "" for none."""
    return NAMES.get(_NO_WORD.sub("_", chart.lower().rpartition("/")[2]).strip("_"), "")


def _add(found: dict[str, float], pair: re.Match[str]) -> None:
    word = _NO_WORD.sub("_", pair["name"]).strip("_")
    name = NAMES[_UNITS.get(word, word)]
    value = number(pair["value"].replace(",", ""))
    if name not in found and value is not None:
        found[name] = value * _LARGE.get(pair["kilo"], 1.0)
