"""Where the time of a training step goes, in words: of a trace of `torch.profiler`, and of stacks that py-spy has sampled."""

from collections.abc import Iterator, Sequence

from mldebug.capture.profile.sampled import SampledProfile
from mldebug.capture.profile.summary import ProfileSummary, Share

PERFETTO = "open it at https://ui.perfetto.dev (the page reads it in your browser, nothing is sent)"
SPEEDSCOPE = (
    "open it at https://www.speedscope.app (the page reads it in your browser, nothing is sent)"
)
UNSEEN = (
    "not seen by py-spy: kernels and copies on the GPU, operators of PyTorch, whether communication and computing overlap,"
    " and where one step ends; a thread that waits in C code looks like one that computes there. Start the job with"
    " `mldebug run -- …` for a trace"
)
_LIMITS = {
    "device": "device-bound: the GPU works nearly all the time, so faster kernels or fewer of them help, not the host",
    "host": "host-bound: the GPU mostly waits for the host, which launches too slowly (Python, small operators, data)",
    "communication": "bound by communication: for much of the time nothing runs but collectives, which may be a wait for a slower rank",
    "cpu only": "host-bound: nothing ran on a GPU, what is here is the host's work",
    "between": "mostly between operators: nothing of PyTorch runs, so it is Python, data, files, or a wait of the job's own",
    "unclear": "neither host nor device is clearly the limit",
    "nothing": "the trace is empty",
}


def profile_lines(found: ProfileSummary) -> Iterator[str]:
    """Sentences about the profile of one rank: what its steps spent their time on."""
    yield _LIMITS[found.limit]
    if not found.span:
        return
    if found.device_busy is not None:
        waits = f", the host waits for it {_of(found.host_waits, found)}"
        yield f"GPU works {_of(found.device_busy, found)}{waits}"
    yield f"operators run on the host {_of(found.host_busy, found)}"
    alone = f", {_of(found.exposed, found)} with nothing beside" if found.communication else ""
    yield f"in collectives {_of(found.communication, found)}{alone}"
    where = "the GPU" if found.device_busy is not None else "the host"
    after = f", after {found.gap_after}" if found.gap_after else ""
    yield f"gaps {_of(found.gaps, found)}, in which nothing of PyTorch runs on {where}; the longest {_ms(found.gap)}{after}"
    if found.kernels:
        yield "kernels that take most:"
        yield from _rows(found.kernels, found.span)
    yield "operators that take most on the host, without what they call:"
    yield from _rows(found.operators, found.span)


def sampled_lines(found: SampledProfile) -> Iterator[str]:
    """The lines that show a profile made of py-spy's samples, of a job without the hook."""
    if not found.samples:
        yield "no sample: py-spy may not read this process, or it has ended"
        return
    yield f"in collectives {_percent(found.communication)}, waits for the GPU {_percent(found.device_waits)}, waits for data {_percent(found.data)}"
    yield "lines of the job that take most, with what they call:"
    for place, share in found.places:
        yield f"  {_percent(share):>6}  {place}"
    yield "functions that take most by themselves:"
    for place, share in found.functions:
        yield f"  {_percent(share):>6}  {place}"
    yield UNSEEN


def _rows(shares: Sequence[Share], span: float) -> Iterator[str]:
    for one in shares:
        yield f"  {_percent(one.microseconds / span):>6}  {_ms(one.microseconds):>9}  {one.count:>6} x  {one.name}"


def _of(microseconds: float, found: ProfileSummary) -> str:
    return f"{_ms(microseconds)} of {_ms(found.span)} ({_percent(microseconds / found.span)})"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _ms(microseconds: float) -> str:
    return f"{microseconds / 1000:.2f} ms"
