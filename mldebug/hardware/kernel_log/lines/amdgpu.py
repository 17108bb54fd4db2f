"""What the amdgpu driver says: work that does not end, resets, page faults of programs, and errors that its RAS found.

Written after the driver's source and public logs: not tried on a card.
"""

import re

from mldebug.hardware.kernel_log.lines.reader import (
    ADDRESS,
    KernelText,
    LineReader,
    bus_id,
    event,
)
from mldebug.hardware.kernel_log.model import KernelEvent, KernelEventKind

# "amdgpu 0000:83:00.0: amdgpu: …", of old drivers "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* …", which names no GPU
_DRM = r"(?:\[drm(?::[\w.]{1,64} \[amdgpu\])?\] ?)"
_HEAD = re.compile(
    rf"(?:amdgpu (?P<bus>{ADDRESS}): (?:amdgpu: )?{_DRM}?|amdgpu: |{_DRM})(?:\*ERROR\* ?)?(?P<words>[^\n]{{1,400}})"
)
_WORDS = (
    (KernelEventKind.GPU_FIRMWARE_SILENT, re.compile(r"SMU: I'm not done with your previous command|SMU: No response msg_reg: |SMU: response:0x\w{1,16} for index|Failed to export SMU metrics table|Failed to send message 0x\w{1,8}, response 0x0\b|MES might be in unrecoverable state|The cp might be in an unrecoverable state")),
    (KernelEventKind.GPU_RING_TIMEOUT, re.compile(r"ring [\w.]{1,32} (?:timeout\b|test failed \(-)|Queue preemption (?:failed|time out)|Failed to (?:evict (?:process )?queues?|quiesce KFD)|MES(?:\(\d{1,2}\))? failed to respon(?:d|se)|Ring [\w.]{1,32} reset failed|fence wait loop timeout expired")),
    (KernelEventKind.GPU_RESET_OK, re.compile(r"GPU reset(?:\(\d{1,9}\))? succeeded|Ring [\w.]{1,32} reset succeeded|device wedged, but recovered", re.IGNORECASE)),
    (KernelEventKind.GPU_RESET_FAILED, re.compile(r"GPU reset(?:\(\d{1,9}\))? failed|GPU reset end with ret = -\d|GPU Recovery Failed|device wedged, needs recovery|ASIC reset failed|device lost from bus", re.IGNORECASE)),
    (KernelEventKind.GPU_START_FAILED, re.compile(r"Fatal error during GPU init|(?:RAS records:[^\n]{1,60}, )?GPU will not be initialized|PSP (?:create ring|load \w{2,8}|firmware loading|tmr init|hw_init) failed\b|[^\n]{0,100}\bfirmware load failed at boot time|(?:early_init|sw_init|hw_init|resume) of IP block <\w{1,32}> failed -\d")),
    (KernelEventKind.GPU_RESET, re.compile(r"GPU reset begin")),
    (KernelEventKind.GPU_BAD_PAGES, re.compile(r"RAS records:\d{1,9} exceeds? (?:90% of )?threshold:")),
    (KernelEventKind.GPU_PAGE_FAULT, re.compile(r"\[\w{1,16}\] (?:no-)?retry page fault|\[\w{1,16}\] page fault")),
)  # fmt: skip
# Not one that is tried again: EAGAIN, EPROBE_DEFER
_NOT_STARTED = re.compile(
    rf"(?:amdgpu (?P<new>{ADDRESS}): probe with driver amdgpu|amdgpu: probe of (?P<old>{ADDRESS})) failed with error -(?!(?:11|517)\b)\d"
)
_RAS = re.compile(
    r"(?P<number>(?<![\d.])[1-9]\d{0,8}) (?:new )?(?:(?P<un>un)?correctable|deferred) hardware errors detected\b"
    r"|(?P<fatal>[Uu]ncorrectable hardware error ?\(ERREVENT|RAS event of type ERREVENT|RAS poison|[Pp]oison is consumed by client \d{1,5}, kick off gpu reset flow\s*$)",
)
# Since MI300: "amdgpu 0000:42:00.0: {1}[Hardware Error]: aca entry[00].STATUS=0x98000800003e0000", one line of several for each error
_ACA = re.compile(r"(?:\{\d{1,9}\})?\[Hardware Error\]: aca entry\[\d{1,4}\]\.STATUS=0x(?P<status>[0-9a-f]{16})\b", re.IGNORECASE)  # fmt: skip
_VALID, _UNCORRECTED = 1 << 63, 1 << 61 | 1 << 57 | 1 << 55  # of the register: valid; UC, PCC, TCC


def _amdgpu(line: KernelText) -> KernelEvent | None:
    match = _HEAD.match(line.text)
    if match is None:
        return None
    words, device = match["words"], bus_id(match["bus"] or "")
    for kind, pattern in _WORDS:
        if pattern.search(words[:120]):
            return event(line, kind, device=device)
    if (aca := _ACA.match(words)) is not None:
        return _of_register(line, device, int(aca["status"], 16))
    ras = _RAS.search(words[:160])
    if ras is None:
        return None
    bad = ras["un"] or ras["fatal"]
    kind = KernelEventKind.GPU_RAS_UNCORRECTED if bad else KernelEventKind.GPU_RAS_CORRECTED
    return event(line, kind, device=device, number=int(ras["number"] or 1))


def _not_started(line: KernelText) -> KernelEvent | None:
    match = _NOT_STARTED.match(line.text)
    if match is None:
        return None
    return event(
        line, KernelEventKind.GPU_START_FAILED, device=bus_id(match["new"] or match["old"])
    )


def _of_register(line: KernelText, device: str, status: int) -> KernelEvent | None:
    if not status & _VALID:
        return None
    kind = KernelEventKind.GPU_RAS_CORRECTED
    if status & _UNCORRECTED:
        kind = KernelEventKind.GPU_RAS_UNCORRECTED
    return event(line, kind, device=device)


SIGNS = (
    LineReader(" failed with error ", _not_started),
    LineReader("amdgpu", _amdgpu),
    LineReader("GPU reset", _amdgpu),
    LineReader("RAS event of type ", _amdgpu),
)
